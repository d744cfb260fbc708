// The input is a model (units of parameters, their sizes and formats), two numbers of ranks and a
// stage. Every element is updated by exactly one rank, parts begin where blocks of a format do,
// all ranks agree, and what one number of ranks has saved in parts is what another one needs.

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "parallel/store_layout.h"
#include "parallel/strategy.h"

namespace {

using namespace fp8train;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  unsigned next() { return at_ < size_ ? data_[at_++] : 0; }
  bool empty() const { return at_ >= size_; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

void fill(ParameterStore& store, Bytes& bytes) {
  store.begin_unit();
  for (int i = 0; i < 40 && !bytes.empty(); ++i) {
    const unsigned kind = bytes.next();
    Parameter parameter;
    parameter.name = "p" + std::to_string(i);
    parameter.shape = {static_cast<int64_t>(1 + bytes.next() + 256 * (bytes.next() % 8)),
                       static_cast<int64_t>(1 + bytes.next() % 32)};
    parameter.gathered.form = kind % 3 == 0   ? GatheredForm::copy
                              : kind % 2 == 0 ? GatheredForm::value
                                              : GatheredForm::operands;
    if (kind % 5 == 0) {
      parameter.formats.gradient = {.dtype = DType::bf16};
    }
    store.add(std::move(parameter));
    if (kind >= 128) {
      store.begin_unit();
    }
  }
}

std::vector<StoreLayout> layouts(const ParameterStore& store, int ranks, StrategySite site) {
  std::vector<StoreLayout> all;
  for (int rank = 0; rank < ranks; ++rank) {
    site.mesh = Mesh({.data = ranks}, rank, nullptr);
    all.push_back(shard_layout(store, site));
  }
  return all;
}

/// Of the parameter, by rank, those that are not empty: [first, end).
std::vector<std::pair<int64_t, int64_t>> parts_of(const std::vector<StoreLayout>& ranks,
                                                  size_t parameter) {
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (const StoreLayout& layout : ranks) {
    const StoreLayout::Part& part = layout.parts[parameter];
    check(part.count >= 0 && part.first >= 0);
    check(part.segment == ranks.front().parts[parameter].segment);
    if (part.count > 0) {
      parts.emplace_back(part.first, part.first + part.count);
    }
  }
  return parts;
}

void check_cover(const ParameterStore& store, const std::vector<StoreLayout>& ranks) {
  constexpr int64_t kGroup = 128;
  for (size_t i = 0; i < store.all().size(); ++i) {
    int64_t next = 0;
    for (const auto& [first, end] : parts_of(ranks, i)) {
      check(first == next && first % kGroup == 0);
      next = end;
    }
    check(next == store.all()[i]->shape.count());
  }
}

void check_segments(const ParameterStore& store, const StoreLayout& layout) {
  std::vector<int> seen(store.all().size());
  const std::vector<size_t> begins = store.unit_begins();
  check(layout.slot_groups.size() + 1 == begins.size());
  for (const StoreLayout::Segment& segment : layout.segments) {
    check(segment.shard % 128 == 0 && segment.parameters.size() == segment.begins.size());
    int64_t end = 0;
    for (size_t i = 0; i < segment.parameters.size(); ++i) {
      const size_t parameter = segment.parameters[i];
      check(i == 0 || segment.parameters[i - 1] < parameter);
      check(parameter >= begins[segment.unit] && parameter < begins[segment.unit + 1]);
      check(segment.begins[i] >= end && segment.begins[i] % 128 == 0);
      end = segment.begins[i] + store.all()[parameter]->shape.count();
      ++seen[parameter];
    }
    check(end <= layout.elements(segment));
  }
  for (const int times : seen) {
    check(times == 1);
  }
  // A model has three units at least: what reads tokens, a block, the head.
  for (size_t unit = 0; layout.slot_groups.size() >= 3 && unit + 1 < layout.slot_groups.size();
       ++unit) {
    check(layout.slot_groups[unit] != layout.slot_groups[unit + 1]);
  }
}

/// As a reader puts a part together from those that another number of ranks has saved.
void check_reading(const std::vector<StoreLayout>& saved, const std::vector<StoreLayout>& wanted,
                   size_t parameter) {
  const auto pieces = parts_of(saved, parameter);
  for (const auto& [first, end] : parts_of(wanted, parameter)) {
    int64_t copied = 0;
    for (const auto& [begin, stop] : pieces) {
      copied += std::max(int64_t{0}, std::min(end, stop) - std::max(first, begin));
    }
    check(copied == end - first);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  const int ranks = 2 + static_cast<int>(bytes.next() % 9);
  const int others = 2 + static_cast<int>(bytes.next() % 9);
  const unsigned choice = bytes.next();
  StrategySite site = {.mesh = {},
                       .settings = {.zero_stage = 1 + static_cast<int>(choice % 3),
                                    .bucket_bytes = int64_t{256} << (bytes.next() % 12)},
                       .accumulates = choice % 5 == 0,
                       .ties_embeddings = choice % 7 == 0};
  ParameterStore store;
  fill(store, bytes);
  if (store.all().empty()) {
    return 0;
  }
  const std::vector<StoreLayout> saved = layouts(store, ranks, site);
  check_cover(store, saved);
  for (const StoreLayout& layout : saved) {
    check(layout.segments == saved.front().segments &&
          layout.slot_groups == saved.front().slot_groups);
    check_segments(store, layout);
  }
  site.settings.zero_stage = 1 + site.settings.zero_stage % 3;
  const std::vector<StoreLayout> other_stage = layouts(store, ranks, site);
  const std::vector<StoreLayout> wanted = layouts(store, others, site);
  check_cover(store, wanted);
  for (size_t i = 0; i < store.all().size(); ++i) {
    check(parts_of(saved, i) == parts_of(other_stage, i));  // does not depend on the stage
    check_reading(saved, wanted, i);
    check_reading(wanted, saved, i);
  }
  return 0;
}
