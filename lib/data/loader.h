#pragma once
// Micro-batches for training and for evaluation. The training loader's state is one 64-bit number,
// the global sample counter; a background thread reads ahead, but the counter moves only when a
// batch is handed out. The corpus must outlive the loader.

#include <cstdint>
#include <memory>
#include <optional>

#include "base/not_copied.h"
#include "data/corpus.h"
#include "data/samples.h"

namespace fp8train {

/// The shape of the batches of one rank.
struct LoaderSettings {
  int64_t micro_batch_size = 1;  ///< B, per rank
  int64_t seq_length = 1024;     ///< T
  bool shuffle = true;
  uint64_t seed = 0;
  int data_rank = 0;             ///< position along the data axis
  int data_ranks = 1;            ///< ranks that read different samples
  int64_t batches_per_step = 1;  ///< batches of a rank; steps begin at seek()
  size_t prefetch = 2;           ///< batches read ahead by the background thread; 0 reads in next()
};

/// Endless batches in the order of Samples. One call of next() on every rank consumes
/// micro_batch_size * data_ranks samples: row b of rank r is sample position + b * data_ranks + r,
/// so the same samples are consumed for any split of the same product. Not thread-safe: one thread
/// calls next(), seek() and position().
class Loader : NotCopied {
 public:
  /// Throws DataError when the corpus has no sample, and InternalError for sizes that are not
  /// positive or a rank that is not one of `data_ranks`.
  Loader(const Corpus& corpus, const LoaderSettings& settings);
  ~Loader();

  /// Returns the next batch of this rank. Throws what reading threw (DataError); the position then
  /// stays where it was.
  Batch next();

  /// Returns the global samples consumed so far, which a checkpoint stores.
  uint64_t position() const { return position_; }

  /// Continues at global sample `position`.
  void seek(uint64_t position);

  const Samples& samples() const { return samples_; }

 private:
  class Prefetcher;
  struct StepTargets {
    uint64_t begin = 0;  ///< first sample
    int64_t targets = 0;
  };

  /// Runs on the thread that reads: the prefetcher's, or the caller's if there is none.
  Batch make_batch(uint64_t position);
  int64_t step_targets(uint64_t position);
  uint64_t samples_per_batch() const;

  LoaderSettings settings_;
  Samples samples_;
  uint64_t position_ = 0;
  uint64_t first_position_ = 0;      ///< position of the last seek()
  std::optional<StepTargets> step_;  ///< the last one that make_batch() was in
  std::unique_ptr<Prefetcher> prefetcher_;
};

/// The part of a validation corpus that a rank reads.
struct ValidationWalk {
  int data_rank = 0;
  int data_ranks = 1;
  int64_t stride = 0;  ///< tokens from one window to the next; 0: seq_length
  const char* length_option = "data.seq_length";  ///< what sets seq_length, for messages
};

/// Returns `batch` without the rows behind the last one that has a target, and without the columns
/// behind the last target of all rows, but with a multiple of `column_multiple` columns, or all.
/// Batch::document_starts must be empty.
Batch without_padding(const Batch& batch, int64_t column_multiple);

/// Walks a validation corpus once, in order: consecutive windows of seq_length targets, the last
/// one padded with kIgnoredTarget, so that every token but the first is a target exactly once over
/// all ranks; or all samples of documents. All ranks see the same number of batches. With a
/// `stride` below seq_length each window begins so many tokens after the one before, and has only
/// the targets that none before it had: all but those of the first window have at least
/// seq_length - stride tokens in front.
class ValidationBatches {
 public:
  ValidationBatches(const Corpus& corpus, int64_t batch_size, int64_t seq_length,
                    const ValidationWalk& walk = {});

  const Samples& samples() const { return samples_; }

  /// Returns the next batch of this rank, or nothing at the end. Throws what reading throws
  /// (DataError).
  std::optional<Batch> next();
  void rewind() { batch_ = 0; }

  /// Returns the number of batches of each rank in one pass.
  int64_t batch_count() const { return batch_count_; }

  /// Returns the number of targets of one pass over all ranks.
  int64_t target_count() const;

 private:
  Samples samples_;
  int64_t batch_size_;
  int data_rank_;
  int data_ranks_;
  int64_t batch_count_;
  int64_t batch_ = 0;
};

}  // namespace fp8train
