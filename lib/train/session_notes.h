#pragma once
// Facts about a run's settings before it starts: choices that were made for the user, and settings
// that are valid but may not be intended. apps words them.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace fp8train {

struct Session;

/// Facts whose numbers are those of the session.
enum class SessionFact {
  whole_model_on_one_rank,  ///< the layout in the settings is for several ranks
  unused_zero_stage,        ///< no two ranks have the same part of the model
  other_processes,          ///< another program's file is for another number of ranks
  other_vocabulary,      ///< the folder of the weights has no tokenizer, and this one has other ids
  other_tokenizer,       ///< the folder of the weights has another one
  unreadable_tokenizer,  ///< it has one of a kind that is not read, or another one
  unused_vocabulary,     ///< the model's vocabulary is many times as large as the tokenizer's
  long_warmup,           ///< it does not end before the run does: usually a trial of a few steps
  long_decay,            ///< warm-up and decay are longer than the run
  high_rate,             ///< of pre-training, without warm-up, for a model that is trained already
  default_warmup,        ///< the warm-up follows from the steps
  unknown_steps,         ///< they follow from the data, which are not read
};

/// The plan scales GEMMs, but no layer has one of them.
struct NothingScaled {
  std::string plan;
  std::map<std::string, int> layers;  ///< by why they are exempt; "": the settings take them out

  bool operator==(const NothingScaled&) const = default;
};

/// A source that the run reads very often.
struct ManyEpochs {
  size_t source = 0;  ///< of the training data, which are all read as often unless they are blended
  double epochs = 0;

  bool operator==(const ManyEpochs&) const = default;
};

/// Text about a file, by the module that has read it.
struct FileRemark {
  std::string text;

  bool operator==(const FileRemark&) const = default;
};

using NotedFact = std::variant<SessionFact, NothingScaled, ManyEpochs, FileRemark>;

struct SessionNote {
  /// In the order in which they are shown.
  enum class Kind { choice, choice_of_training, warning, warning_of_training };
  Kind kind = Kind::warning;  ///< of training: it concerns only a run that trains
  NotedFact fact;

  bool operator==(const SessionNote&) const = default;
};

// Each function looks for facts and adds them to the notes of the session.

/// Weights come with a tokenizer: another one gives their tokens other meanings.
void note_other_tokenizer(Session& session);
/// Length and rate of the schedule, for the steps of the run.
void note_schedule(Session& session);
/// Stages in whose plan every layer is exempt, or taken out of scaled formats by the settings.
void note_nothing_scaled(Session& session);
/// `epochs`: how often the run reads each source of a blend, or all sources.
void note_many_epochs(Session& session, const std::vector<double>& epochs);
void note_unused_vocabulary(Session& session);

}  // namespace fp8train
