#include "data/samples.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/math.h"
#include "base/philox.h"
#include "data/loader.h"

namespace fp8train {
namespace {

constexpr uint64_t kPurposeDocuments = 0x646F6373;  // "docs"

}  // namespace

SampleForm sample_form(const DataSettings& settings, const Tokenizer& tokenizer,
                       const Corpus& train) {
  SampleForm form;
  form.packing = settings.packing;
  if (form.packing == Packing::automatic) {
    form.packing = train.has_ignored_tokens() ? Packing::documents : Packing::windows;
  }
  form.masks_documents = form.packing == Packing::documents;
  if (form.is_windows() && train.has_ignored_tokens()) {
    throw ConfigError(
        "data.packing: windows does not go with dialogues, whose questions are no targets; set it "
        "to documents or none");
  }
  if (form.is_windows() && settings.document_mask) {
    form.masks_documents = true;
    form.end_token = tokenizer.eos_id();
    if (form.end_token < 0) {
      throw ConfigError(
          "data.document_mask: true needs a tokenizer with an end-of-sequence token, which ends "
          "documents");
    }
  }
  return form;
}

Samples::Samples(const Corpus& corpus, int64_t seq_length, SampleWalk walk, bool shuffle,
                 uint64_t seed)
    : corpus_(corpus), seq_length_(seq_length), walk_(walk), shuffle_(shuffle), seed_(seed) {
  if (!corpus.form().is_windows()) {
    documents_.emplace(corpus, seq_length, corpus.form().packing == Packing::documents);
  } else if (walk == SampleWalk::training) {
    windows_.emplace(corpus.size(), seq_length, shuffle, seed);
  }
}

uint64_t Samples::samples_per_epoch() const {
  if (documents_) {
    return static_cast<uint64_t>(documents_->size());
  }
  return windows_ ? windows_->samples_per_epoch()
                  : static_cast<uint64_t>(ceil_div(target_count(), seq_length_));
}

int64_t Samples::target_count() const {
  return documents_ ? documents_->targets() : std::max<int64_t>(0, corpus_.size() - 1);
}

int64_t Samples::targets(uint64_t index) const {
  return documents_ ? documents_->targets(document_sample(index)) : 0;
}

Batch Samples::empty_batch(int64_t rows) const {
  Batch batch;
  batch.rows = rows;
  batch.columns = seq_length_;
  batch.tokens.assign(static_cast<size_t>(rows * seq_length_), 0);
  batch.targets.assign(batch.tokens.size(), kIgnoredTarget);
  if (corpus_.form().masks_documents) {
    batch.document_starts.assign(batch.tokens.size(), 0);
  }
  return batch;
}

int64_t Samples::document_sample(uint64_t index) const {
  const uint64_t count = samples_per_epoch();
  const uint64_t epoch = index / count;
  if (!shuffle_) {
    return static_cast<int64_t>(index % count);
  }
  const Permutation permutation(philox_key(seed_, kPurposeDocuments, epoch), count);
  return static_cast<int64_t>(permutation(index % count));
}

void Samples::read_window(int64_t start, int64_t targets, Batch& batch, int64_t row) const {
  std::vector<int32_t> window(static_cast<size_t>(targets) + 1);
  corpus_.read(start, targets + 1, window.data());
  const int64_t begin = row * seq_length_;
  std::copy_n(window.begin(), targets, batch.tokens.begin() + begin);
  std::copy_n(window.begin() + 1, targets, batch.targets.begin() + begin);
  if (!corpus_.form().masks_documents) {
    return;
  }
  int32_t document = 0;
  for (int64_t t = 0; t < seq_length_; ++t) {
    batch.document_starts[static_cast<size_t>(begin + t)] = document;
    if (t < targets && window[static_cast<size_t>(t)] == corpus_.form().end_token) {
      document = static_cast<int32_t>(t) + 1;
    }
  }
}

void Samples::read(uint64_t index, Batch& batch, int64_t row) const {
  if (windows_) {
    read_window(windows_->start_of(index), seq_length_, batch, row);
    return;
  }
  if (walk_ == SampleWalk::once && index >= samples_per_epoch()) {
    return;
  }
  if (!documents_) {
    const int64_t start = static_cast<int64_t>(index) * seq_length_;
    read_window(start, std::min(seq_length_, target_count() - start), batch, row);
    return;
  }
  const int64_t begin = row * seq_length_;
  documents_->read(
      document_sample(index),
      {.tokens = batch.tokens.data() + begin,
       .targets = batch.targets.data() + begin,
       .document_starts =
           batch.document_starts.empty() ? nullptr : batch.document_starts.data() + begin});
}

}  // namespace fp8train
