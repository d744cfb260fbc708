#pragma once
// Multiple choice: the log-likelihood of each answer of a question, as lm-evaluation-harness 0.4
// takes it (lm_eval/api/model.py, TemplateLM; lm_eval/models/huggingface.py, HFLM;
// lm_eval/api/task.py, ConfigurableTask.process_results).

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "data/choice_questions.h"
#include "data/tokenizer.h"
#include "train/step/engine.h"

namespace fp8train {

/// Batches have a multiple of so many columns: few shapes, for devices that make plans of them.
constexpr int64_t kColumnMultiple = 16;

/// A text of which the likelihood of the end is asked for.
struct Continuation {
  std::vector<int32_t> tokens;
  size_t targets = 0;  ///< the last tokens, whose likelihood is asked for; fewer than tokens
};

/// Ids of `context` followed by `continuation`, with what belongs in front of a prompt. White space
/// (space to carriage return) at the end of the context counts as the continuation's. Targets are
/// the ids behind as many as the context alone has. An empty context is preceded by the
/// beginning-of-sequence token, or the end-of-sequence token. At most `longest` + 1 ids stay, the
/// last ones. Throws DataError where there are no targets, or more than `longest`.
Continuation encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                 std::string_view continuation, int64_t longest);

/// Encodes a question as the model sees it: for each choice the context, a space and the choice.
std::vector<Continuation> encode_question(const Tokenizer& tokenizer,
                                          const ChoiceQuestion& question, int64_t longest);

/// Batches of the engine's size with continuations of like lengths.
class ContinuationBatches {
 public:
  /// Keeps a reference to `texts`. A row has at most `columns` inputs.
  ContinuationBatches(const std::vector<Continuation>& texts, int64_t rows, int64_t columns);

  bool done() const { return next_ == order_.size(); }
  /// Returns the next batch. If `padded`, it has the engine's full shape.
  Batch next(bool padded);
  void rewind() { next_ = 0; }
  /// Continuations of the batch that was made last, row by row.
  std::vector<size_t> rows() const { return rows_; }

 private:
  const std::vector<Continuation>& texts_;
  int64_t most_rows_;
  int64_t most_columns_;
  std::vector<size_t> order_;  ///< longest first
  size_t next_ = 0;
  std::vector<size_t> rows_;
};

/// Log-likelihood of each continuation in nats. `progress` is called with the number that is done.
std::vector<double> log_likelihoods(Engine& engine, const std::vector<Continuation>& texts,
                                    const std::function<void(size_t)>& progress = {});

/// The index of the chosen answer by each measure. Of equal answers the first is chosen.
struct ChoiceAnswers {
  size_t acc = 0;        ///< the highest log-likelihood
  size_t acc_norm = 0;   ///< the highest one per character (code point) of the choice
  size_t acc_bytes = 0;  ///< the highest one per byte of the choice
};
ChoiceAnswers choose(const ChoiceQuestion& question, const std::vector<double>& log_likelihoods);

/// A part of right answers, and the standard error of that mean.
struct Accuracy {
  double mean = 0;
  double standard_error = 0;
};
Accuracy accuracy(size_t right, size_t questions);

}  // namespace fp8train
