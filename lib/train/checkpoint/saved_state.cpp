#include "train/checkpoint/saved_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "train/checkpoint/resume_checks.h"
#include "train/checkpoint/value_checks.h"

namespace fp8train {

SavedState::SavedState(const std::filesystem::path& checkpoint)
    : checkpoint_(checkpoint), manifest_(verify_checkpoint(checkpoint, Verify::sizes)) {
  for (const FileRecord& record : manifest_.files) {
    if (record.name.starts_with("optimizer")) {
      add_file(checkpoint / record.name);
    }
  }
}

DType SavedState::dtype_of(const std::string& name) const {
  const std::span<const Range> ranges = saved_ranges(name);
  if (ranges.empty()) {
    throw CheckpointError(
        fmt::format("{}: the optimizer's files have no '{}'", checkpoint_.string(), name));
  }
  const SafetensorsType& type = ranges.front().entry->type;
  if (!type.dtype || !is_stored_type(*type.dtype)) {
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

std::vector<uint8_t> SavedState::read(const std::string& name, DType dtype, int64_t first,
                                      int64_t count) const {
  const size_t size = size_of(dtype);
  std::vector<uint8_t> result(static_cast<size_t>(count) * size);
  int64_t copied = 0;
  for (const Range& saved : saved_ranges(name)) {
    const int64_t begin = std::max(first, saved.first);
    const int64_t end = std::min(first + count, saved.first + saved.entry->count());
    if (begin >= end) continue;
    used_.insert(saved.file);
    if (const SafetensorsType& type = saved.entry->type; type.dtype != dtype) {
      require_hashes();  // a damaged header is no other run
      throw OtherRunError(fmt::format(
          "{}: '{}' is stored as {}, and this run stores it as {}; to continue that run, change "
          "its format back (precision in the configuration)",
          checkpoint_.string(), name, type.dtype ? name_of(*type.dtype) : type.name,
          name_of(dtype)));
    }
    files_[saved.file]->read(*saved.entry, static_cast<uint64_t>(begin - saved.first) * size,
                             static_cast<size_t>(end - begin) * size,
                             result.data() + static_cast<size_t>(begin - first) * size);
    copied += end - begin;
  }
  if (copied != count) {
    throw CheckpointError(
        fmt::format("{}: of '{}' as {} the optimizer's files have {} of the elements {} .. {}",
                    checkpoint_.string(), name, name_of(dtype), copied, first, first + count - 1));
  }
  if (const std::string bad = impossible_state(name, result.data(), dtype, count, first);
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
  for (const size_t i : used_) {
    require_hash(checkpoint_, manifest_, files_[i]->path().filename().string(), files_[i]->hash());
  }
}

std::span<const SavedState::Range> SavedState::saved_ranges(const std::string& name) const {
  const auto found = ranges_.find(name);
  return found == ranges_.end() ? std::span<const Range>() : found->second;
}

void SavedState::add_file(const std::filesystem::path& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path, SafetensorsFile::Reads::hashed));
  for (const SafetensorsEntry& entry : files_.back()->header().entries) {
    const size_t at = entry.name.rfind('@');
    Range range = {files_.size() - 1, &entry, 0};
    std::string name = entry.name.substr(0, at);
    if (at != std::string::npos) {
      // "NAME@FIRST" or, of scales, "NAME.scale@FIRST"
      const auto first = whole_number<int64_t>(std::string_view(entry.name).substr(at + 1));
      if (!first) {
        throw CheckpointError(
            fmt::format("{}: '{}' is not the name of a part", path.string(), entry.name));
      }
      range.first = *first;
    }
    ranges_[name].push_back(range);
  }
}

}  // namespace fp8train
