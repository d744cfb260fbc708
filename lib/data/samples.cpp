#include "data/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"
#include "base/philox.h"
#include "data/loader.h"

namespace fp8train {
namespace {

constexpr uint64_t kPurposeDocuments = 0x646F6373;  // "docs"
constexpr uint64_t kPurposeSource = 0x736F7572;     // "sour"

bool is_blend(const Corpus& corpus, const SampleOptions& options) {
  return options.walk == SampleWalk::training && corpus.is_blend();
}

std::vector<double> weights_of(const Corpus& corpus, const SampleOptions& options) {
  if (!is_blend(corpus, options)) {
    return {1.0};
  }
  std::vector<double> weights;
  for (const CorpusSource& source : corpus.sources()) {
    weights.push_back(source.weight);
  }
  return weights;
}

}  // namespace

SampleForm sample_form(const DataSettings& settings, const Tokenizer& tokenizer,
                       const Corpus& train, const Corpus& val) {
  SampleForm form;
  form.packing = settings.packing;
  if (form.packing == Packing::automatic) {
    form.packing = train.has_ignored_tokens() ? Packing::documents : Packing::windows;
  }
  form.masks_documents = form.packing == Packing::documents;
  if (form.is_windows() && train.has_ignored_tokens()) {
    throw KeyError("data.packing",
                   ": windows does not go with dialogues, whose questions are not targets; set it "
                   "to documents or none");
  }
  if (form.is_windows() && val.has_ignored_tokens()) {
    throw KeyError("data.val",
                   " has dialogues, whose questions are not targets, and data.train has text: set "
                   "data.packing: documents or none, or validate on text");
  }
  if (form.is_windows() && settings.document_mask) {
    form.masks_documents = true;
    form.end_token = tokenizer.eos_id();
    if (form.end_token < 0) {
      throw KeyError(
          "data.document_mask",
          ": true needs a tokenizer with an end-of-sequence token, which ends documents");
    }
  }
  return form;
}

Samples::Samples(const Corpus& corpus, int64_t seq_length, const SampleOptions& options)
    : corpus_(corpus),
      seq_length_(seq_length),
      options_(options),
      blend_(weights_of(corpus, options)) {
  if (options_.stride == 0) {
    options_.stride = seq_length;
  }
  check(seq_length >= 1, "seq_length must be positive");
  check(options_.stride >= 1 && options_.stride <= seq_length, "a stride is from 1 to seq_length");
  if (!is_blend(corpus, options)) {
    sources_.push_back(make_source({0, corpus.size()}, options.seed));
    return;
  }
  for (const CorpusSource& source : corpus.sources()) {
    try {
      sources_.push_back(make_source({source.begin, source.size},
                                     philox_key(options.seed, kPurposeSource, sources_.size())));
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", source.path, error.what()));
    }
  }
}

Samples::Source Samples::make_source(const TokenRange& range, uint64_t seed) const {
  Source source = {.begin = range.begin, .seed = seed, .windows = {}, .documents = {}};
  if (!corpus_.form().is_windows()) {
    source.documents.emplace(corpus_, range, seq_length_,
                             corpus_.form().packing == Packing::documents, options_.length_option);
    if (options_.walk == SampleWalk::training && source.documents->size() == 0) {
      throw DataError(
          "no document is left to train on; lower data.val_fraction or remove the source");
    }
  } else if (options_.walk == SampleWalk::training) {
    source.windows.emplace(range.size, seq_length_, options_.shuffle, seed);
  }
  return source;
}

uint64_t Samples::Source::samples_per_epoch() const {
  return documents ? static_cast<uint64_t>(documents->size()) : windows->samples_per_epoch();
}

uint64_t Samples::samples_per_epoch() const {
  if (holds_documents() || options_.walk == SampleWalk::training) {
    return std::accumulate(
        sources_.begin(), sources_.end(), uint64_t{0},
        [](uint64_t sum, const Source& source) { return sum + source.samples_per_epoch(); });
  }
  const int64_t behind_first = std::max<int64_t>(0, target_count() - seq_length_);
  return target_count() == 0 ? 0
                             : 1 + static_cast<uint64_t>(ceil_div(behind_first, options_.stride));
}

int64_t Samples::target_count() const {
  return holds_documents() ? sources_.front().documents->targets()
                           : std::max<int64_t>(0, corpus_.size() - 1);
}

Samples::SourceDraw Samples::draw_of(uint64_t index) const {
  const Blend::Draw draw = blend_.draw(index);
  return {&sources_[draw.source], draw.index};
}

int64_t Samples::targets(uint64_t index) const {
  const SourceDraw draw = draw_of(index);
  return draw.source->documents ? draw.source->documents->targets(document_sample(draw)) : 0;
}

int64_t Samples::start_of(uint64_t index) const {
  const SourceDraw draw = draw_of(index);
  return draw.source->begin + draw.source->windows->start_of(draw.index);
}

std::vector<double> Samples::epochs(uint64_t samples) const {
  std::vector<double> result;
  for (size_t i = 0; i < sources_.size(); ++i) {
    result.push_back(static_cast<double>(blend_.count(i, samples)) /
                     static_cast<double>(sources_[i].samples_per_epoch()));
  }
  return result;
}

const DocumentSamples* Samples::documents(size_t source) const {
  return sources_[source].documents ? &*sources_[source].documents : nullptr;
}

void Samples::describe(const std::string& name, std::vector<std::string>& notes,
                       std::vector<std::string>& warnings) const {
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (const DocumentSamples* const of_source = documents(i)) {
      of_source->describe(sources_.size() > 1 ? corpus_.sources()[i].path : name, notes, warnings);
    }
  }
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

int64_t Samples::document_sample(const SourceDraw& draw) const {
  const uint64_t count = draw.source->samples_per_epoch();
  const uint64_t epoch = draw.index / count;
  if (!options_.shuffle) {
    return static_cast<int64_t>(draw.index % count);
  }
  const Permutation permutation(philox_key(draw.source->seed, kPurposeDocuments, epoch), count);
  return static_cast<int64_t>(permutation(draw.index % count));
}

void Samples::read_window(int64_t start, int64_t targets, int64_t skipped, Batch& batch,
                          int64_t row) const {
  std::vector<int32_t> window(static_cast<size_t>(targets) + 1);
  corpus_.read(start, targets + 1, window.data());
  const int64_t begin = row * seq_length_;
  std::copy_n(window.begin(), targets, batch.tokens.begin() + begin);
  std::copy(window.begin() + 1 + skipped, window.end(), batch.targets.begin() + begin + skipped);
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
  if (options_.walk == SampleWalk::once && index >= samples_per_epoch()) {
    return;
  }
  const SourceDraw draw = draw_of(index);
  if (draw.source->windows) {
    read_window(start_of(index), seq_length_, 0, batch, row);
    return;
  }
  if (!draw.source->documents) {
    const int64_t start = static_cast<int64_t>(index) * options_.stride;
    const int64_t targets = std::min(seq_length_, target_count() - start);
    read_window(start, targets, index == 0 ? 0 : seq_length_ - options_.stride, batch, row);
    return;
  }
  const int64_t begin = row * seq_length_;
  draw.source->documents->read(
      document_sample(draw),
      {.tokens = batch.tokens.data() + begin,
       .targets = batch.targets.data() + begin,
       .document_starts =
           batch.document_starts.empty() ? nullptr : batch.document_starts.data() + begin});
}

}  // namespace fp8train
