#include "data/file_hashes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json_reader.h"
#include "base/json_text.h"

namespace fp8train {
namespace {

constexpr const char* kFormat = "fp8train-data-hashes";
constexpr int kVersion = 1;
constexpr size_t kMaxCache = 1U << 28;
constexpr int kAttempts = 3;

int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

/// A write shortly after the reading may leave a file's times as they are: clocks of file systems
/// tick slowly. Such a hash is not believed later.
bool is_settled(const FileIdentity& identity, int64_t read_at_ns) {
  constexpr int64_t kSlowestTick = 2'000'000'000;
  return std::max(identity.mtime_ns, identity.ctime_ns) + kSlowestTick < read_at_ns;
}

/// Reads a file until it stayed the same meanwhile, or returns nothing if `stop` is requested.
/// Throws DataError, which says `changed`, if the file is another than when it was opened.
std::optional<FileHash> hash_settled(const DataFile& data, const std::stop_token& stop,
                                     std::string_view changed) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const InputFile file(data.path);
    const int64_t begin = now_ns();
    std::optional<std::string> hash = hash_content(file, [&] { return stop.stop_requested(); });
    if (!hash) return std::nullopt;
    if (file.identity() != file.opened()) continue;
    if (file.opened() != data.identity) {
      throw DataError(fmt::format("{}: {}; start it again", data.path, changed));
    }
    return FileHash{*std::move(hash), file.opened(), begin};
  }
  throw DataError(fmt::format(
      "{}: is written to while it is read; wait until the file is complete and start again",
      data.path));
}

std::string cache_key(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

}  // namespace

FileHashes::FileHashes(std::vector<DataFile> files, std::filesystem::path cache, uint64_t at_once)
    : files_(std::move(files)), cache_(std::move(cache)), hashes_(files_.size()) {
  read_cache();
  bool wrote = false;
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!hashes_[i].xxh3_128.empty() || files_[i].identity.bytes > at_once) {
      continue;
    }
    at_once -= files_[i].identity.bytes;
    hashes_[i] = *hash_settled(files_[i], {}, "changed while the run was starting");
    wrote = true;
  }
  if (wrote) {
    write_cache();
  }
  if (bytes_left() > 0) {
    thread_ = std::jthread([this](const std::stop_token& stop) { read_rest(stop); });
  }
}

void FileHashes::read_rest(const std::stop_token& stop) {
  for (size_t i = 0; i < files_.size(); ++i) {
    if (!hashes_[i].xxh3_128.empty()) {  // only this thread writes
      continue;
    }
    try {
      const std::optional<FileHash> read = hash_settled(
          files_[i], stop,
          "was written to or replaced since the run began, so that what it has read of it is not "
          "known");
      if (!read) {
        return;
      }
      {
        const std::lock_guard lock(mutex_);
        hashes_[i] = *read;
        ++version_;
      }
      write_cache();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      ++version_;
      return;
    }
  }
}

std::vector<std::string> FileHashes::known() const {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
  std::vector<std::string> result;
  for (const FileHash& hash : hashes_) {
    result.push_back(hash.xxh3_128);
  }
  return result;
}

int64_t FileHashes::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

uint64_t FileHashes::bytes_left() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    bytes += hashes_[i].xxh3_128.empty() ? files_[i].identity.bytes : 0;
  }
  return bytes;
}

void FileHashes::read_cache() {
  std::map<std::string, FileHash> cached;
  try {
    const auto document = read_json_file(cache_, kMaxCache);
    if (document.at("format") != kFormat || document.at("version") != kVersion) {
      return;
    }
    for (const auto& file : document.at("files")) {
      FileHash hash = {file.at("xxh3_128").get<std::string>(),
                       {.bytes = file.at("bytes").get<uint64_t>(),
                        .mtime_ns = file.at("mtime_ns").get<int64_t>(),
                        .ctime_ns = file.at("ctime_ns").get<int64_t>(),
                        .inode = file.at("inode").get<uint64_t>()},
                       file.at("read_at_ns").get<int64_t>()};
      cached.emplace(file.at("path").get<std::string>(), std::move(hash));
    }
  } catch (const DataError&) {  // there is none, or it is damaged
    return;
  } catch (const nlohmann::json::exception&) {
    return;
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto found = cached.find(cache_key(files_[i].path));
    if (found != cached.end() && found->second.identity == files_[i].identity &&
        is_settled(found->second.identity, found->second.read_at_ns)) {
      hashes_[i] = found->second;
    }
  }
}

void FileHashes::write_cache() const {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (size_t i = 0; i < files_.size(); ++i) {
    const FileHash& hash = hashes_[i];
    if (!hash.xxh3_128.empty()) {
      files.push_back({{"path", cache_key(files_[i].path)},
                       {"bytes", hash.identity.bytes},
                       {"mtime_ns", hash.identity.mtime_ns},
                       {"ctime_ns", hash.identity.ctime_ns},
                       {"inode", hash.identity.inode},
                       {"read_at_ns", hash.read_at_ns},
                       {"xxh3_128", hash.xxh3_128}});
    }
  }
  const nlohmann::ordered_json document = {
      {"format", kFormat}, {"version", kVersion}, {"files", std::move(files)}};
  try {
    // A name that is not UTF-8 is not found again: its file is read each time.
    write_file_atomically(cache_, json_text(document, 1) + "\n");
  } catch (const DeviceError&) {  // a full disk: the files are read again next time
  }
}

}  // namespace fp8train
