#pragma once
// The meaning of a run's settings before anything large is allocated: tokenizer, data, model shape,
// precision plan, number of steps. Train, check, explain and bench all start here, so they cannot
// disagree.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/settings.h"
#include "data/corpus.h"
#include "data/samples.h"
#include "data/tokenizer.h"
#include "device/device.h"
#include "device/device_choice.h"
#include "engine/engine.h"
#include "model/families/hf_fields.h"

namespace fp8train {

/// The number of steps whose losses the device keeps if the run looks for spikes. The run takes the
/// losses before there are more.
constexpr int64_t kLossHistory = 256;

class DataRecord;

/// Files that checkpoints take from the folder of model.from next to its model; empty if there
/// is none.
struct SourceFolder {
  ConfigObject config;               ///< all of config.json
  std::vector<TokenizerFile> files;  ///< generation_config.json, terms of use
};

// Facts about a run's settings before it starts: choices that were made for the user, and settings
// that are valid but may not be intended. apps words them.

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

/// The settings, the data and the tokenizer of a run, opened and checked.
struct Session {
  Settings settings;
  std::unique_ptr<Tokenizer> tokenizer;
  CorpusSplits data;                        ///< empty unless asked for
  std::shared_ptr<DataRecord> data_record;  ///< set on the first rank of a run; null on others
  SourceFolder source;
  EngineSettings engine;           ///< settings of one of the stages
  std::vector<RunStage> stages;    ///< one, but where precision.schedule has several scaled plans
  uint64_t epoch_samples = 0;      ///< of one pass over the training data; 0: they are not open
  int64_t max_steps = 0;           ///< 0: not known; training.max_epochs needs the data
  int ranks = 1;                   ///< of the run
  int data_ranks = 1;              ///< of them along the data axis of the mesh
  std::vector<SessionNote> notes;  ///< to be reported

  void note(NotedFact fact, SessionNote::Kind kind = SessionNote::Kind::warning) {
    notes.push_back({kind, std::move(fact)});
  }
  /// Returns the stage of the step that follows `steps` optimizer steps, or the last one.
  size_t stage_after(int64_t steps) const;
  /// Sets `engine` to the settings of a stage.
  void enter_stage(size_t stage);
  /// Returns the settings of a stage.
  EngineSettings engine_of(size_t stage) const;

  /// Returns the tokens of an optimizer step of all ranks.
  int64_t tokens_per_step() const { return engine.step.tokens() * data_ranks; }
  /// Returns the samples of the whole run.
  uint64_t samples() const {
    return static_cast<uint64_t>(max_steps * tokens_per_step() / engine.step.seq_length);
  }
};

/// Resolves the settings for a run of `ranks`; one rank has the whole model, whatever the layout in
/// the settings. `open_data` also opens and checks the corpora.
/// Throws ConfigError, DataError or CheckpointError (model.from).
Session open_session(const Settings& settings, bool open_data, int ranks = 1);

/// Opens the data of a session, checks the samples of training and validation, and sets the length
/// of the run. Throws as open_session() does.
void open_corpora_of(Session& session);

/// Sets the steps of the run and its stages; the stages are those of a very long run if the number
/// of steps is not known. Throws ConfigError.
void set_length(Session& session);

/// Returns the samples of a run in the order of training. Their data must be open and outlive them.
/// Throws DataError if there is no sample.
Samples training_samples(const Session& session);

/// Returns the settings of an engine for a model whose vocabulary is known. Reads no data. A global
/// batch is not divided among ranks yet. Throws ConfigError.
EngineSettings engine_settings(const Settings& settings, const ModelConfig& model);

/// Returns the number of tokens of the longest prompt, with the ids in front of it. Throws
/// DataError for a prompt that cannot be encoded.
int64_t longest_prompt(const SampleSettings& sample, const Tokenizer& tokenizer);

/// Sets EngineSettings::samples of a run that has some. Throws ConfigError or DataError for a
/// prompt that cannot be continued.
void add_samples(Session& session);

/// Opens the device that `device: cpu | cuda | auto` means, and sets `reason` to the reason for it.
/// `tune_gemms`: its products are timed (ops::tune_gemms), and choices are stored in the cache
/// folder. `gpu` is the index among the GPUs that this process sees. Throws DeviceError if the
/// device cannot be used.
std::unique_ptr<Device> choose_device(DeviceChoice choice, bool tune_gemms, std::string& reason,
                                      int gpu = 0);

/// Returns the optimizer steps of a run on `data_ranks` ranks of the data axis; 0: not known,
/// because no length is given, or because training.max_epochs needs `epoch_samples`, the samples of
/// one pass over the data (0: the data have not been read). Throws ConfigError if the tokens of a
/// step or of the run are too many to be counted.
int64_t resolve_max_steps(const TrainingSettings& training, const StepSettings& step,
                          int data_ranks, uint64_t epoch_samples);

/// Returns the key that gives the length of the run.
std::string length_key(const TrainingSettings& training);

/// Returns the model with ModelConfig::lora: the adapters of a run, and how it stores the frozen
/// weights, from model.lora and the folders that it names. `model`: completed. Throws ConfigError
/// where keys contradict each other or targets match nothing, CheckpointError for folders that
/// cannot be read.
ModelConfig with_adapters(Session& session, ModelConfig model);

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
