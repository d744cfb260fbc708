#include "io/safetensors/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/lfs_pointer.h"
#include "io/strict_json.h"
#include "numeric/bulk.h"

namespace fp8train {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = sizeof(uint64_t);

template <typename Stored>
std::vector<Stored> read_stored(const SafetensorsFile& file, const SafetensorsEntry& entry,
                                int64_t first, int64_t count) {
  std::vector<Stored> stored(static_cast<size_t>(count));
  file.read(entry, static_cast<uint64_t>(first) * sizeof(Stored), stored.size() * sizeof(Stored),
            stored.data());
  return stored;
}

template <typename Stored>
std::vector<float> read_decoded(const SafetensorsFile& file, const SafetensorsEntry& entry,
                                int64_t first, int64_t count) {
  const auto stored = read_stored<Stored>(file, entry, first, count);
  std::vector<float> values(stored.size());
  decode(stored.data(), values.data(), values.size());
  return values;
}

}  // namespace

void SafetensorsFile::read_exactly(uint64_t offset, void* to, size_t bytes) const {
  detail::as_checkpoint_error(
      [&] { hashed_ ? hashed_->read(file_, offset, to, bytes) : file_.read(offset, to, bytes); });
}

std::string SafetensorsFile::hash() const {
  check(hashed_ != nullptr, "the file is hashed");
  return detail::as_checkpoint_error([&] { return hashed_->digest(file_); });
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, Reads reads)
    : file_(detail::as_checkpoint_error([&] { return InputFile(path); })),
      hashed_(reads == Reads::hashed ? std::make_unique<HashedReads>() : nullptr) {
  const std::string where = path.string();
  detail::as_checkpoint_error([&] { refuse_lfs_pointer(file_); });
  if (file_.size() < kLengthBytes) {
    throw CheckpointError(
        fmt::format("{}: {} bytes cannot be a safetensors file", where, file_.size()));
  }
  uint64_t length = 0;
  read_exactly(0, &length, sizeof(length));
  if (length > kMaxHeaderBytes || length > file_.size() - kLengthBytes) {
    throw CheckpointError(fmt::format(
        "{}: a header of {} bytes is announced, but the file has {} bytes and a header at most {}; "
        "it is cut off or not a safetensors file",
        where, length, file_.size(), kMaxHeaderBytes));
  }
  std::string json(length, '\0');
  read_exactly(kLengthBytes, json.data(), json.size());
  data_start_ = kLengthBytes + length;
  header_ = parse_safetensors_header(json, file_.size() - data_start_, where);
  for (size_t i = 0; i < header_.entries.size(); ++i) {
    by_name_.emplace(header_.entries[i].name, i);
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.entries[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, void* to) const {
  read_exactly(data_start_ + entry.begin, to, entry.bytes());
}

void SafetensorsFile::read(const SafetensorsEntry& entry, uint64_t offset, size_t bytes,
                           void* to) const {
  check(offset + bytes <= entry.bytes(), "a part lies within its tensor");
  read_exactly(data_start_ + entry.begin + offset, to, bytes);
}

std::vector<float> SafetensorsFile::read_f32(const SafetensorsEntry& entry, int64_t first,
                                             int64_t count) const {
  if (entry.type.dtype == DType::f32) {
    return read_stored<float>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::bf16) {
    return read_decoded<bf16>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::f16) {
    return read_decoded<f16>(*this, entry, first, count);
  }
  if (entry.type.dtype == DType::f64) {
    const auto stored = read_stored<double>(*this, entry, first, count);
    std::vector<float> values(stored.size());
    std::transform(stored.begin(), stored.end(), values.begin(),
                   [](double value) { return static_cast<float>(value); });
    return values;
  }
  throw CheckpointError(
      fmt::format("{}: tensor '{}' is {}; only F32, BF16, F16 and F64 can be read as weights",
                  path().string(), entry.name, entry.type.name));
}

}  // namespace fp8train
