#pragma once
// The samples of a corpus, in whatever form it has (SampleForm): windows of its tokens, or
// documents. Which sample comes when is a pure function of seed, epoch and index.

#include <cstdint>
#include <optional>

#include "data/corpus.h"
#include "data/document_samples.h"
#include "data/sample_order.h"

namespace fp8train {

constexpr int32_t kIgnoredTarget = -1;  ///< no loss at this position

/// What samples of these sources hold, where `settings` leave it open: documents for dialogues.
/// Throws ConfigError.
SampleForm sample_form(const DataSettings& settings, const Tokenizer& tokenizer,
                       const Corpus& train);

/// How samples are walked: without end in the order of training, or once in order.
enum class SampleWalk : uint8_t { training, once };

struct Batch;

class Samples {
 public:
  /// The corpus outlives it. Throws DataError where it has no sample to train on.
  Samples(const Corpus& corpus, int64_t seq_length, SampleWalk walk, bool shuffle = false,
          uint64_t seed = 0);

  /// A batch of `rows` rows in which nothing is a target.
  Batch empty_batch(int64_t rows) const;
  /// Writes sample `index`, counted over all epochs, into a row of such a batch. Beyond the end
  /// of a walk, nothing.
  void read(uint64_t index, Batch& batch, int64_t row) const;

  /// Of one epoch, or of the walk.
  uint64_t samples_per_epoch() const;
  /// Targets of sample `index`; 0 for windows of training, where every position is one.
  int64_t targets(uint64_t index) const;
  /// Targets of one walk.
  int64_t target_count() const;
  /// Null where samples are windows.
  const DocumentSamples* documents() const { return documents_ ? &*documents_ : nullptr; }

 private:
  int64_t document_sample(uint64_t index) const;
  void read_window(int64_t start, int64_t targets, Batch& batch, int64_t row) const;

  const Corpus& corpus_;
  int64_t seq_length_;
  SampleWalk walk_;
  bool shuffle_;
  uint64_t seed_;
  std::optional<SampleOrder> windows_;  ///< of training
  std::optional<DocumentSamples> documents_;
};

}  // namespace fp8train
