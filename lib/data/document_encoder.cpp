#include "data/document_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/machine.h"

namespace fp8train {
namespace {

constexpr size_t kTaskBytes = 1U << 20;

/// Of a document that cannot be cut.
void require_memory(size_t bytes) {
  static const uint64_t kMost = available_memory() / 2;
  if (bytes > kMost) {
    throw DataError(fmt::format(
        "a document of more than {} MiB, half of the memory that is available, has to be held as a "
        "whole, because this tokenizer does not say where it may be cut; split the file",
        kMost >> 20));
  }
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer, int64_t threads, SequenceFrame frame,
                                 Sink sink)
    : tokenizer_(tokenizer), frame_(std::move(frame)), tasks_(threads, std::move(sink)) {}

void DocumentEncoder::add(std::string document) {
  put({std::move(document), true, true});
}

void DocumentEncoder::add_part(std::string_view text, bool last) {
  pending_ += text;
  if (!last && pending_.size() >= kTaskBytes) {
    const size_t from = searched_ - std::min(searched_, Tokenizer::kCutBytes);
    size_t cut = tokenizer_.last_cut(std::string_view(pending_).substr(from));
    if (cut == 0) {
      searched_ = pending_.size();
      require_memory(pending_.size());
    } else {
      cut += from;
      searched_ = pending_.size() - cut;
      std::string rest = pending_.substr(cut);
      pending_.resize(cut);
      put({std::exchange(pending_, std::move(rest)), !is_within_, false});
      is_within_ = true;
    }
  }
  if (last) {
    put({std::exchange(pending_, {}), !is_within_, true});
    searched_ = 0;
    is_within_ = false;
  }
}

void DocumentEncoder::put(Part part) {
  task_bytes_ += part.text.size();
  task_.push_back(std::move(part));
  if (task_bytes_ >= kTaskBytes) start_task();
}

void DocumentEncoder::start_task() {
  if (task_.empty()) return;
  task_bytes_ = 0;
  tasks_.start([this, task = std::exchange(task_, {})] { return encode(task); });
}

void DocumentEncoder::finish() {
  start_task();
  tasks_.finish();
}

EncodedText DocumentEncoder::encode(const Task& task) const {
  EncodedText result;
  std::vector<int32_t>& all = result.ids;
  // Not insert(), of which GCC 14 says that it writes beyond the end.
  const auto append = [&](const std::vector<int32_t>& ids) {
    std::ranges::copy(ids, std::back_inserter(all));
  };
  for (const Part& part : task) {
    if (part.begins) append(frame_.before_document);
    std::vector<int32_t> ids =
        part.begins ? tokenizer_.encode(part.text) : tokenizer_.encode_rest(part.text);
    if (all.empty()) {
      all = std::move(ids);
    } else {
      append(ids);
    }
    if (part.ends) {
      append(frame_.after_document);
      result.ends.push_back(all.size());
    }
  }
  return result;
}

}  // namespace fp8train
