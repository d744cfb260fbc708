#include "train/checkpoint/data_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace fp8train {
namespace {

/// Returns the first name that `list` has and `other` lacks; empty where there is none.
std::string first_without(const std::vector<std::string>& list,
                          const std::vector<std::string>& other) {
  for (const std::string& name : list) {
    if (std::find(other.begin(), other.end(), name) == other.end()) {
      return name;
    }
  }
  return "";
}

/// The path as JSON stores it: bytes that are not UTF-8 are replaced.
std::string as_noted(const std::string& path) {
  using nlohmann::json;
  return json::parse(json(path).dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string other_count(const std::vector<std::string>& before,
                        const std::vector<std::string>& now) {
  const std::string added = first_without(now, before);
  const std::string removed = first_without(before, now);
  return fmt::format("data.train had {} files and has {}{}{}", before.size(), now.size(),
                     removed.empty() ? "" : fmt::format("; {} is no longer in data.train", removed),
                     added.empty() ? "" : fmt::format("; {} was added", added));
}

bool same_times(const nlohmann::json& noted, const FileIdentity& identity) {
  return noted.value("mtime_ns", int64_t{-1}) == identity.mtime_ns &&
         noted.value("ctime_ns", int64_t{-1}) == identity.ctime_ns &&
         noted.value("inode", uint64_t{0}) == identity.inode;
}

}  // namespace

DataRecord::DataRecord(const Corpus& corpus, const std::filesystem::path& cache, uint64_t at_once)
    : hashes_(corpus.files(), cache, at_once) {}

nlohmann::ordered_json DataRecord::noted() const {
  const std::vector<std::string> known = hashes_.known();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < known.size(); ++i) {
    const DataFile& file = hashes_.files()[i];
    const auto expected = expected_.find(i);
    nlohmann::ordered_json entry = {
        {"path", file.path},
        {"bytes", file.identity.bytes},
        {"xxh3_128", expected == expected_.end() ? known[i] : expected->second}};
    if (known[i].empty() && expected == expected_.end()) {
      entry["mtime_ns"] = file.identity.mtime_ns;
      entry["ctime_ns"] = file.identity.ctime_ns;
      entry["inode"] = file.identity.inode;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

DataRecord::Comparison DataRecord::compare(const nlohmann::json& noted) {
  Comparison result;
  const std::vector<DataFile>& files = hashes_.files();
  if (noted.size() != files.size()) {
    std::vector<std::string> before;
    std::vector<std::string> now;
    for (const nlohmann::json& entry : noted) {
      before.push_back(entry.at("path").get<std::string>());
    }
    for (const DataFile& file : files) {
      now.push_back(as_noted(file.path));
    }
    result.changes.push_back(other_count(before, now));
    return result;
  }
  const std::vector<std::string> known = hashes_.known();
  for (size_t i = 0; i < files.size(); ++i) {
    const auto bytes = noted[i].at("bytes").get<uint64_t>();
    const auto hash = noted[i].at("xxh3_128").get<std::string>();
    const std::string& path = files[i].path;
    if (bytes != files[i].identity.bytes) {
      result.changes.push_back(
          fmt::format("{} had {} bytes and has {}", path, bytes, files[i].identity.bytes));
    } else if (hash.empty() && !same_times(noted[i], files[i].identity)) {
      result.doubts.push_back(
          fmt::format("{}: it had not been read to its end when the checkpoint was saved, and it "
                      "was written to or copied since: only samples of it are compared",
                      path));
    } else if (!hash.empty() && known[i].empty()) {
      expected_[i] = hash;
    } else if (!hash.empty() && known[i] != hash) {
      result.changes.push_back(fmt::format("{} has other content of the same size", path));
    }
  }
  return result;
}

std::vector<std::string> DataRecord::check() {
  std::vector<std::string> changes;
  const int64_t version = hashes_.version();
  if (version == seen_) {
    return changes;
  }
  seen_ = version;
  const std::vector<std::string> known = hashes_.known();
  for (auto entry = expected_.begin(); entry != expected_.end();) {
    const auto& [file, hash] = *entry;
    if (known[file].empty()) {
      ++entry;
      continue;
    }
    if (known[file] != hash) {
      changes.push_back(
          fmt::format("{} has other content of the same size", hashes_.files()[file].path));
    }
    entry = expected_.erase(entry);
  }
  return changes;
}

uint64_t DataRecord::bytes_to_compare() const {
  uint64_t bytes = 0;
  for (const auto& [file, hash] : expected_) {
    bytes += hashes_.files()[file].identity.bytes;
  }
  return bytes;
}

}  // namespace fp8train
