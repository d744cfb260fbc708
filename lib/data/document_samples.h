#pragma once
// Sequences made of whole documents: which documents each holds, and its tokens, targets and
// document boundaries.

#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace fp8train {

/// One row of a batch, seq_length elements each; the caller's memory.
struct SampleRow {
  int32_t* tokens;
  int32_t* targets;          ///< the token after each, or kIgnoredTarget
  int32_t* document_starts;  ///< may be null
};

/// Sequences of whole documents. A document of n tokens takes n - 1 positions: its last token is a
/// target only. Packed, documents go in their order into the first of at most 64 open sequences
/// that has space, else into a new one (first fit); of 64, the fullest is closed. Not packed, each
/// has a sequence of its own. Documents that are longer than a sequence are cut; those without a
/// target in a sequence are left out. The corpus outlives it.
class DocumentSamples {
 public:
  /// Makes sequences of the documents in a range of the corpus. Throws DataError where tokens of it
  /// belong to no document, or no document has a target. `length_option` names what sets
  /// seq_length.
  DocumentSamples(const Corpus& corpus, const TokenRange& range, int64_t seq_length, bool packs,
                  std::string length_option = "data.seq_length");

  int64_t size() const { return static_cast<int64_t>(targets_.size()); }
  /// Returns the number of targets of one sample.
  int64_t targets(int64_t sample) const { return targets_[static_cast<size_t>(sample)]; }
  int64_t targets() const;  ///< targets of all samples

  /// Reads a sample into `row`. Padding has token 0, no target, and is a document of its own.
  void read(int64_t sample, SampleRow row) const;

  int64_t documents() const { return static_cast<int64_t>(documents_.size()); }
  int64_t cut() const { return cut_; }            ///< documents that were cut
  int64_t left_out() const { return left_out_; }  ///< documents without a target
  /// Adds a line about the samples to `notes`, and lines about documents that were cut or left out
  /// to `warnings`. `name` is what the lines call the data.
  void describe(const std::string& name, std::vector<std::string>& notes,
                std::vector<std::string>& warnings) const;
  double filled() const;  ///< part of all positions that is not padding

 private:
  struct Piece {
    int64_t begin;
    int32_t count;  ///< tokens
    int32_t targets;
  };
  void find_pieces(const TokenRange& range);
  void pack();
  /// Sequence numbers of documents_, in order.
  std::vector<int64_t> first_fit();

  const Corpus& corpus_;
  int64_t seq_length_;
  std::string length_option_;
  std::vector<Piece> documents_;  ///< those of a sample next to each other
  std::vector<int64_t> first_;    ///< index in documents_ for each sample; one more at the end
  std::vector<int32_t> targets_;  ///< number for each sample
  int64_t cut_ = 0;
  int64_t unread_ = 0;  ///< tokens that were cut off
  int64_t left_out_ = 0;
};

}  // namespace fp8train
