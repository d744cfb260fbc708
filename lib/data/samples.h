#pragma once
// The samples of a corpus in one of two forms (SampleForm): windows of its tokens, or documents.
// Their order is a pure function of seed, epoch and index. With several weighted sources each has
// its own order and its own epochs, and a Blend distributes the samples.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/document_samples.h"
#include "data/sample_order.h"
#include "engine/batch.h"

namespace fp8train {

/// Returns the content of samples of these sources if `settings` leave it open: documents for
/// dialogues. Throws ConfigError.
SampleForm sample_form(const DataSettings& settings, const Tokenizer& tokenizer,
                       const Corpus& train, const Corpus& val);

/// How samples are walked: without end in the order of training, or once in order.
enum class SampleWalk : uint8_t { training, once };

/// The order in which samples are walked.
struct SampleOptions {
  SampleWalk walk = SampleWalk::training;
  bool shuffle = false;
  uint64_t seed = 0;
  /// Windows that are walked once: tokens from one to the next; 0: seq_length. One below it gives
  /// each window the targets alone that none before it had.
  int64_t stride = 0;
  const char* length_option = "data.seq_length";  ///< what sets seq_length, for messages
};

/// The samples of a corpus in the order of training: windows of tokens, or documents.
class Samples {
 public:
  /// The corpus outlives it. Throws DataError if it, or a source of a blend, has no sample to train
  /// on.
  Samples(const Corpus& corpus, int64_t seq_length, const SampleOptions& options = {});

  /// Returns a batch of `rows` rows in which nothing is a target.
  Batch empty_batch(int64_t rows) const;
  /// Reads sample `index`, counted over all epochs, into a row of such a batch. Leaves the row as
  /// it is beyond the end of a walk that is made once. Throws as Corpus::read() does.
  void read(uint64_t index, Batch& batch, int64_t row) const;

  /// Returns the number of samples of one pass, over all sources of a blend together, or of a walk
  /// that is made once.
  uint64_t samples_per_epoch() const;
  /// Returns the number of targets of sample `index`, or 0 for windows of training, where every
  /// position is one.
  int64_t targets(uint64_t index) const;
  /// Returns the number of targets of one walk.
  int64_t target_count() const;
  /// Returns the first token in the corpus of window `index` of training. Samples must be windows
  /// of a walk without end.
  int64_t start_of(uint64_t index) const;
  /// Returns the number of passes over each source of a blend, or over the corpus, in the first
  /// `samples` of training.
  std::vector<double> epochs(uint64_t samples) const;

  bool holds_documents() const { return sources_.front().documents.has_value(); }
  /// Returns the documents of a source of a blend, or of the corpus, or null if samples are
  /// windows.
  const DocumentSamples* documents(size_t source = 0) const;
  /// Adds lines about samples of documents to `notes`, and about documents that were cut or left
  /// out to `warnings`; `name` is what they call the data, and a source of a blend has its own
  /// name. Adds nothing for windows.
  void describe(const std::string& name, std::vector<std::string>& notes,
                std::vector<std::string>& warnings) const;

 private:
  /// The samples of one source of a blend, or of the corpus.
  struct Source {
    int64_t begin = 0;  ///< token of the corpus
    uint64_t seed = 0;
    std::optional<SampleOrder> windows;  ///< windows of training
    std::optional<DocumentSamples> documents;

    uint64_t samples_per_epoch() const;
  };
  struct SourceDraw {
    const Source* source;
    uint64_t index;  ///< counted over the samples of this source
  };
  Source make_source(const TokenRange& range, uint64_t seed) const;
  SourceDraw draw_of(uint64_t index) const;
  int64_t document_sample(const SourceDraw& draw) const;
  /// Writes a window; its first `skipped` positions are not targets.
  void read_window(int64_t start, int64_t targets, int64_t skipped, Batch& batch,
                   int64_t row) const;

  const Corpus& corpus_;
  int64_t seq_length_;
  SampleOptions options_;
  Blend blend_;
  std::vector<Source> sources_;  ///< one, or those of the blend
};

}  // namespace fp8train
