#include "data/document_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/samples.h"

namespace fp8train {
namespace {

constexpr size_t kOpen = 64;  // sequences that are being filled at a time

/// "1 document is", "2 documents are".
std::string of_documents(int64_t count, const char* one_does, const char* many_do) {
  return count == 1 ? fmt::format("1 document {}", one_does)
                    : fmt::format("{} documents {}", count, many_do);
}

}  // namespace

DocumentSamples::DocumentSamples(const Corpus& corpus, const TokenRange& range, int64_t seq_length,
                                 bool packs, std::string length_option)
    : corpus_(corpus), seq_length_(seq_length), length_option_(std::move(length_option)) {
  find_pieces(range);
  if (packs) {
    pack();
  } else {
    first_.resize(documents_.size() + 1);
    std::iota(first_.begin(), first_.end(), int64_t{0});
  }
  for (size_t i = 0; i + 1 < first_.size(); ++i) {
    int32_t targets = 0;
    for (auto d = static_cast<size_t>(first_[i]); d < static_cast<size_t>(first_[i + 1]); ++d) {
      targets += documents_[d].targets;
    }
    targets_.push_back(targets);
  }
}

void DocumentSamples::find_pieces(const TokenRange& range) {
  int64_t covered = 0;
  std::vector<uint8_t> is_target;
  for (const Document& document : corpus_.documents()) {
    if (document.begin < range.begin || document.begin >= range.begin + range.size) {
      continue;
    }
    covered += document.count;
    const int64_t count = std::min(document.count, seq_length_ + 1);
    is_target.resize(static_cast<size_t>(count));
    corpus_.read_targets(document.begin, count, is_target.data());
    const auto targets =
        count < 2 ? 0 : std::accumulate(is_target.begin() + 1, is_target.end(), int32_t{0});
    if (targets == 0) {
      ++left_out_;
      continue;
    }
    cut_ += count < document.count ? 1 : 0;
    unread_ += document.count - count;
    documents_.push_back({document.begin, static_cast<int32_t>(count), targets});
  }
  if (covered < range.size) {
    throw DataError(fmt::format(
        "{} of {} tokens come from files that do not say where documents begin, so that they "
        "cannot "
        "be packed as documents; name the JSON lines themselves in data.train, prepare them again "
        "(data prepare writes an .idx file next to each shard), or set data.packing: windows",
        range.size - covered, range.size));
  }
  if (documents_.empty() && range.size > 0) {
    throw DataError(fmt::format("no document has a target within {}; raise {}", length_option_,
                                length_option_));
  }
}

std::vector<int64_t> DocumentSamples::first_fit() {
  struct Open {
    int64_t sample;
    int64_t free;
  };
  std::vector<Open> open;
  std::vector<int64_t> sample_of;
  int64_t samples = 0;
  for (const Piece& document : documents_) {
    const int64_t needed = document.count - 1;
    auto sequence =
        std::find_if(open.begin(), open.end(), [&](const Open& one) { return one.free >= needed; });
    if (sequence == open.end()) {
      if (open.size() == kOpen) {
        open.erase(std::min_element(open.begin(), open.end(),
                                    [](const Open& a, const Open& b) { return a.free < b.free; }));
      }
      sequence = open.insert(open.end(), {samples++, seq_length_});
    }
    sequence->free -= needed;
    sample_of.push_back(sequence->sample);
  }
  return sample_of;
}

void DocumentSamples::pack() {
  const std::vector<int64_t> sample_of = first_fit();
  std::vector<size_t> order(documents_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sample_of[a] < sample_of[b]; });
  std::vector<Piece> sorted;
  for (const size_t i : order) {
    while (static_cast<int64_t>(first_.size()) <= sample_of[i]) {
      first_.push_back(static_cast<int64_t>(sorted.size()));
    }
    sorted.push_back(documents_[i]);
  }
  first_.push_back(static_cast<int64_t>(sorted.size()));
  documents_ = std::move(sorted);
}

int64_t DocumentSamples::targets() const {
  return std::accumulate(targets_.begin(), targets_.end(), int64_t{0});
}

double DocumentSamples::filled() const {
  const int64_t used =
      std::accumulate(documents_.begin(), documents_.end(), int64_t{0},
                      [](int64_t sum, const Piece& document) { return sum + document.count - 1; });
  return size() == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(size() * seq_length_);
}

void DocumentSamples::describe(const std::string& name, std::vector<std::string>& notes,
                               std::vector<std::string>& warnings) const {
  notes.push_back(fmt::format(
      "{}: {} document{} in {} sequence{}, {:.1f} % full; loss on {} tokens of an epoch", name,
      documents(), documents() == 1 ? "" : "s", size(), size() == 1 ? "" : "s", 100 * filled(),
      targets()));
  if (cut_ > 0) {
    warnings.push_back(fmt::format("{}: {} longer than {} and cut; {} tokens are not read", name,
                                   of_documents(cut_, "is", "are"), length_option_, unread_));
  }
  if (left_out_ > 0) {
    warnings.push_back(fmt::format("{}: {} left out, without a target within {}", name,
                                   of_documents(left_out_, "is", "are"), length_option_));
  }
}

void DocumentSamples::read(int64_t sample, SampleRow row) const {
  int64_t at = 0;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> is_target;
  const auto begin_document = [&](int64_t start, int64_t end) {
    if (row.document_starts != nullptr) {
      std::fill(row.document_starts + start, row.document_starts + end,
                static_cast<int32_t>(start));
    }
  };
  const auto index = static_cast<size_t>(sample);
  for (auto d = static_cast<size_t>(first_[index]); d < static_cast<size_t>(first_[index + 1]);
       ++d) {
    const Piece& document = documents_[d];
    tokens.resize(static_cast<size_t>(document.count));
    is_target.resize(tokens.size());
    corpus_.read(document.begin, document.count, tokens.data());
    corpus_.read_targets(document.begin, document.count, is_target.data());
    begin_document(at, at + document.count - 1);
    for (size_t i = 0; i + 1 < tokens.size(); ++i, ++at) {
      row.tokens[at] = tokens[i];
      row.targets[at] = is_target[i + 1] != 0 ? tokens[i + 1] : kIgnoredTarget;
    }
  }
  begin_document(at, seq_length_);
  std::fill(row.tokens + at, row.tokens + seq_length_, 0);
  std::fill(row.targets + at, row.targets + seq_length_, kIgnoredTarget);
}

}  // namespace fp8train
