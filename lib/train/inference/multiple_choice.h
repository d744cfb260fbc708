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
#include "engine/engine.h"

namespace fp8train {

/// Batches have a multiple of this number of columns, or the most: few shapes, for devices that
/// make plans of them.
constexpr int64_t kColumnMultiple = 16;

/// The ids of a text, the last of which are targets: their likelihood is asked for.
struct Continuation {
  std::vector<int32_t> tokens;
  size_t targets = 0;  ///< number of the last tokens that are targets; fewer than tokens
};

/// Returns the ids of `context` followed by `continuation`, with the ids that belong in front of a
/// prompt. ASCII white space at the end of the context counts as the continuation's. The context
/// alone has n ids; the targets are the ids after the first n. Instead of an empty context there is
/// the beginning-of-sequence token or, if the tokenizer has none, the end-of-sequence token. At
/// most the last `longest` + 1 ids stay. Throws DataError if there are no targets, or more than
/// `longest`.
Continuation encode_continuation(const Tokenizer& tokenizer, std::string_view context,
                                 std::string_view continuation, int64_t longest);

/// Encodes a question as the model sees it: for each choice the context, a space and the choice.
/// Throws DataError as encode_continuation() does, with ChoiceQuestion::where.
std::vector<Continuation> encode_question(const Tokenizer& tokenizer,
                                          const ChoiceQuestion& question, int64_t longest);

/// Makes batches of continuations of similar lengths, the longest first.
class ContinuationBatches {
 public:
  /// Makes batches of at most `rows` texts. Keeps a reference to `texts`. Each text has at most
  /// `columns` + 1 ids.
  ContinuationBatches(const std::vector<Continuation>& texts, int64_t rows, int64_t columns);

  bool done() const { return next_ == order_.size(); }
  /// Returns the next batch. If `padded`, it has all rows and columns. done() must be false.
  Batch next(bool padded);
  /// Starts again with the first batch.
  void rewind() { next_ = 0; }
  /// Returns the indices of the texts in the batch that was made last, row by row.
  std::vector<size_t> rows() const { return rows_; }

 private:
  const std::vector<Continuation>& texts_;
  int64_t most_rows_;
  int64_t most_columns_;
  std::vector<size_t> order_;  ///< longest first
  size_t next_ = 0;
  std::vector<size_t> rows_;
};

/// Returns the log-likelihood of the targets of each text in nats. `progress` is called after each
/// batch with the number of texts that are done. Not collective.
std::vector<double> log_likelihoods(Engine& engine, const std::vector<Continuation>& texts,
                                    const std::function<void(size_t)>& progress = {});

/// The index of the chosen answer by each measure. Of equal answers the first is chosen.
struct ChoiceAnswers {
  size_t acc = 0;        ///< the highest log-likelihood
  size_t acc_norm = 0;   ///< the highest one per character (code point) of the choice
  size_t acc_bytes = 0;  ///< the highest one per byte of the choice
};
/// Returns the answers that follow from the log-likelihoods of the choices, one for each.
ChoiceAnswers choose(const ChoiceQuestion& question, const std::vector<double>& log_likelihoods);

/// The share of right answers, from 0 to 1, and the standard error of this mean.
struct Accuracy {
  double mean = 0;
  double standard_error = 0;
};
/// Returns the accuracy of `right` answers to at least one question. The standard error of one
/// question is 0.
Accuracy accuracy(size_t right, size_t questions);

}  // namespace fp8train
