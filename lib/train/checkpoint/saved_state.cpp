#include "train/checkpoint/saved_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "numeric/codec.h"
#include "ops/storage/storage.h"
#include "tensor/tensor.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/value_checks.h"

namespace fp8train {
namespace {

/// Words an element type of the files.
std::string_view words_of(DType type) {
  return type == DType::u8 ? "four-bit codes (e2m1)" : name_of(type);
}

}  // namespace

SavedState::SavedState(const std::filesystem::path& checkpoint)
    : checkpoint_(checkpoint), manifest_(verify_checkpoint(checkpoint, Verify::sizes)) {
  for (const FileRecord& record : manifest_.files) {
    if (record.name.starts_with("optimizer")) {
      add_file(checkpoint / record.name, SafetensorsFile::Reads::hashed);
    }
  }
}

SavedState::SavedState(const std::filesystem::path& folder, const std::vector<std::string>& files)
    : checkpoint_(folder) {
  for (const std::string& file : files) {
    add_file(folder / file, SafetensorsFile::Reads::plain);
  }
}

DType SavedState::dtype_of(const std::string& name) const {
  const std::span<const Range> ranges = saved_ranges(name);
  if (ranges.empty()) {
    throw CheckpointError(
        fmt::format("{}: the optimizer's files have no '{}'", checkpoint_.string(), name));
  }
  const SafetensorsType& type = ranges.front().entry->type;
  if (!type.dtype || (!is_stored_type(*type.dtype) && type.dtype != DType::u8)) {
    throw CheckpointError(
        fmt::format("{}: '{}' is of the unknown type '{}'", checkpoint_.string(), name, type.name));
  }
  return *type.dtype;
}

int64_t SavedState::count_of(const std::string& name) const {
  int64_t count = 0;
  for (const Range& range : saved_ranges(name)) {
    count += range.entry->count();
  }
  return count;
}

/// Reads what `saved` has of consecutive elements into `to`, and returns how many these are.
int64_t SavedState::read_overlap(const std::string& name, const Range& saved,
                                 const StateBox& wanted, DType dtype, uint8_t* to) const {
  const size_t size = size_of(dtype);
  const int64_t count = saved.entry->count();
  const int64_t columns = saved.columns == 0 ? count : saved.columns;
  const int64_t first = saved.row * wanted.width + saved.first;
  const int64_t end = wanted.element + wanted.count;
  int64_t done = saved.columns == 0 || wanted.element < first
                     ? 0
                     : (wanted.element - first) / wanted.width * columns;
  int64_t copied = 0;
  for (; done < count; done += columns) {
    const int64_t row = first + done / columns * wanted.width;
    const int64_t begin = std::max(wanted.element, row);
    if (row >= end) break;
    if (begin >= row + columns) continue;
    used_.insert(saved.file);
    if (const SafetensorsType& type = saved.entry->type; type.dtype != dtype) {
      require_hashes();  // a damaged header is no other run
      throw OtherRunError(fmt::format(
          "{}: '{}' is stored as {}, and this run stores it as {}; to continue that run, change "
          "its format back (precision in the configuration)",
          checkpoint_.string(), name, type.dtype ? words_of(*type.dtype) : type.name,
          words_of(dtype)));
    }
    const auto elements = static_cast<size_t>(std::min(end, row + columns) - begin);
    files_[saved.file]->read(*saved.entry, static_cast<uint64_t>(done + begin - row) * size,
                             elements * size,
                             to + static_cast<size_t>(begin - wanted.element) * size);
    copied += static_cast<int64_t>(elements);
  }
  return copied;
}

std::vector<uint8_t> SavedState::read(const std::string& name, DType dtype,
                                      const StateBox& box) const {
  const size_t size = size_of(dtype);
  std::vector<uint8_t> result(static_cast<size_t>(box.count) * size);
  int64_t copied = 0;
  int64_t last = box.element;
  box.for_each_row([&](int64_t local, int64_t element, int64_t count) {
    const StateBox row = {.element = element, .count = count, .width = box.width};
    uint8_t* const to = result.data() + static_cast<size_t>(local - box.local) * size;
    for (const Range& saved : saved_ranges(name)) {
      copied += read_overlap(name, saved, row, dtype, to);
    }
    last = element + count - 1;
  });
  if (copied != box.count) {
    throw CheckpointError(
        fmt::format("{}: of '{}' as {} the optimizer's files have {} of the elements {} .. {}",
                    checkpoint_.string(), name, name_of(dtype), copied, box.element, last));
  }
  if (const std::string bad = impossible_state(name, result.data(), dtype, box.count, box.element);
      !bad.empty()) {
    require_hashes();  // a damaged file is named as such
    throw CheckpointError(fmt::format("{}: {}", checkpoint_.string(), bad));
  }
  return result;
}

std::pair<size_t, uint64_t> SavedState::position(const std::string& name, int64_t first) const {
  for (const Range& range : saved_ranges(name)) {
    if (first < range.first + range.entry->count()) {
      return {range.file, range.entry->begin};
    }
  }
  return {};
}

void SavedState::require_hashes() const {
  if (manifest_.files.empty()) {
    return;  // files that this run has just written
  }
  for (const size_t i : used_) {
    require_hash(checkpoint_, manifest_, files_[i]->path().filename().string(), files_[i]->hash());
  }
}

std::span<const SavedState::Range> SavedState::saved_ranges(const std::string& name) const {
  const auto found = ranges_.find(name);
  return found == ranges_.end() ? std::span<const Range>() : found->second;
}

void SavedState::add_file(const std::filesystem::path& path, SafetensorsFile::Reads reads) {
  files_.push_back(std::make_unique<SafetensorsFile>(path, reads));
  for (const SafetensorsEntry& entry : files_.back()->header().entries) {
    const size_t at = entry.name.rfind('@');
    Range range = {.file = files_.size() - 1, .entry = &entry};
    if (at != std::string::npos) {
      // "NAME@FIRST" or "NAME@ROW,COLUMN"; of scales, NAME ends with ".scale"
      const std::vector<std::string> numbers = split(entry.name.substr(at + 1), ',');
      const auto first = whole_number<int64_t>(numbers.back());
      const auto row = whole_number<int64_t>(numbers.front());
      constexpr int64_t kMaxRow = int64_t{1} << 31;
      constexpr int64_t kMaxFirst = int64_t{1} << 60;
      const bool is_box = numbers.size() == 2 && entry.shape.size() == 2 && entry.shape[1] > 0;
      if (!first || *first > kMaxFirst || !row || (is_box && *row > kMaxRow) ||
          (numbers.size() > 1 && !is_box)) {
        throw CheckpointError(
            fmt::format("{}: '{}' is not the name of a part", path.string(), entry.name));
      }
      range.first = *first;
      range.row = is_box ? *row : 0;
      range.columns = is_box ? entry.shape[1] : 0;
    }
    ranges_[entry.name.substr(0, at)].push_back(range);
  }
}

HostStored::HostStored(const TensorFormat& format, int64_t count)
    : codes(storage_bytes(format.dtype, {count})),
      scales(static_cast<size_t>(stored_scales(format, count))),
      tensor({codes.data(), format.dtype, {count}}, format,
             {scales.data(), DType::f32, {static_cast<int64_t>(scales.size())}}) {
  tensor.format.rounding = Rounding::nearest_even;
  if (scales.empty()) {
    tensor.scales = {};
  }
}

std::vector<float> values_of(const HostStored& stored) {
  std::vector<float> values(static_cast<size_t>(stored.tensor.count()));
  ops::read_stored(Communicator::host_stream(), stored.tensor,
                   {values.data(), DType::f32, {stored.tensor.count()}});
  return values;
}

HostStored stored_in(const TensorFormat& format, const std::vector<float>& values) {
  HostStored stored(format, static_cast<int64_t>(values.size()));
  const ConstView x = {values.data(), DType::f32, {stored.tensor.count()}};
  ops::store(Communicator::host_stream(), {.x = x, .to = stored.tensor});
  return stored;
}

namespace {

/// floor_second_moment() of codes under scales of blocks. A block that needs a floor under a scale
/// of 0 gets the smallest scale, and its codes are made anew under that.
template <typename Scales>
void floor_blocks(const std::vector<float>& first, const std::vector<float>& values,
                  HostStored& second) {
  constexpr int64_t kGroup = Scales::kGroup;
  const auto count = static_cast<int64_t>(values.size());
  for (int64_t begin = 0; begin < count; begin += Scales::kBlock) {
    const int64_t end = std::min<int64_t>(begin + Scales::kBlock, count);
    if (std::all_of(&first[begin], &first[begin] + (end - begin), [](float m) { return m == 0; })) {
      continue;
    }
    const int64_t group = begin / kGroup * kGroup;
    Scales& scales = second.tensor.scales.as<Scales>()[group / kGroup];
    e4m3& block = scales.blocks[(begin - group) / Scales::kBlock];
    const bool vanished = is_zero_code(block);
    block = floor_code(block, true);
    const float* const of_group = &values[group];
    const float amax = *std::max_element(of_group, of_group + std::min(kGroup, count - group));
    const float factor = two_level_factor(block, Scales::factor_of(amax));
    for (int64_t i = begin; i < end; ++i) {
      uint8_t& pair = second.codes[i / 2];
      const auto shift = static_cast<unsigned>(4 * (i % 2));
      const e2m1 old = {static_cast<uint8_t>(pair >> shift & 0xFU)};
      const e2m1 code = vanished ? encode<e2m1>(values[i] * factor) : old;
      const unsigned bits = two_level_code(code, first[i] != 0);
      pair = static_cast<uint8_t>((pair & ~(0xFU << shift)) | bits << shift);
    }
  }
}

}  // namespace

void upload(Device& device, const HostStored& from, const Encoded& to) {
  copy_from_host(device, to.codes, from.codes.data());
  if (!to.scales.empty()) {
    copy_from_host(device, to.scales, from.scales.data());
  }
}

void decode_to_host(Device& device, const Encoded& tensor, float* to) {
  if (tensor.format == TensorFormat{}) {
    copy_to_host(device, to, tensor.codes);
    return;
  }
  HostStored host(tensor.format, tensor.count());
  copy_to_host(device, host.codes.data(), tensor.codes);
  if (!tensor.scales.empty()) {
    copy_to_host(device, host.scales.data(), tensor.scales);
  }
  ops::read_stored(Communicator::host_stream(), host.tensor, {to, DType::f32, {tensor.count()}});
}

std::vector<float> values_on_host(Device& device, const Encoded& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  decode_to_host(device, tensor, values.data());
  return values;
}

void floor_second_moment(const std::vector<float>& first, const std::vector<float>& values,
                         HostStored& second) {
  if (codec_of(second.tensor.format) == Codec::two_level) {
    return AllGroupScales::with(second.tensor.format.block.columns, [&]<typename Scales>(Scales) {
      floor_blocks<Scales>(first, values, second);
    });
  }
  const size_t size = size_of(second.tensor.format.dtype);
  for (size_t i = 0; i < first.size(); ++i) {
    uint8_t* code = second.codes.data() + i * size;
    if (first[i] != 0.0F &&
        std::all_of(code, code + size, [](uint8_t byte) { return byte == 0; })) {
      code[0] = 1;
    }
  }
}

}  // namespace fp8train
