#include "train/checkpoint/data_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/text.h"

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
  return json::parse(json_text(json(path)));
}

std::string other_count(const std::vector<std::string>& before,
                        const std::vector<std::string>& now) {
  const std::string added = first_without(now, before);
  const std::string removed = first_without(before, now);
  return fmt::format("data.train had {} and has {}{}{}", counted(std::ssize(before), "file"),
                     now.size(),
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
    const auto before = noted[i].at("path").get<std::string>();
    const bool is_other = before != as_noted(path);
    if (bytes != files[i].identity.bytes) {
      const auto now = static_cast<int64_t>(files[i].identity.bytes);
      result.changes.push_back(
          is_other ? fmt::format("data.train has {} ({}) for {} ({})", path, counted(now, "byte"),
                                 before, counted(static_cast<int64_t>(bytes), "byte"))
                   : fmt::format("{} had {} and has {}", path,
                                 counted(static_cast<int64_t>(bytes), "byte"), now));
    } else if (hash.empty() && !same_times(noted[i], files[i].identity)) {
      result.doubts.push_back(
          fmt::format("{}: it had not been read to its end when the checkpoint was saved, and it "
                      "was written to or copied since: only samples of it are compared",
                      path));
    } else if (!hash.empty() && known[i].empty()) {
      expected_[i] = hash;
    } else if (!hash.empty() && known[i] != hash) {
      result.changes.push_back(
          is_other ? fmt::format("data.train has {} for {}, with other content of the same size",
                                 path, before)
                   : fmt::format("{} has other content of the same size", path));
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

bool accepts_changed_data(const Session& session) {
  return session.settings.checkpoint.changed_data == OnChange::accept;
}

void begin_data_record(Session& session, const std::filesystem::path& cache, uint64_t at_once) {
  session.data_record = std::make_shared<DataRecord>(session.data.train, cache, at_once);
}

namespace {

/// The files that turned out to differ since the last call, in words; empty if there are none, or
/// if differences are accepted, which are warned of.
std::string refused_changes(const Session& session) {
  const std::vector<std::string> changes =
      session.data_record == nullptr ? std::vector<std::string>() : session.data_record->check();
  std::string text = fmt::format("{}", fmt::join(changes, "; "));
  if (text.empty() || !accepts_changed_data(session)) {
    return text;
  }
  log_warning("data: " + text);
  return "";
}

}  // namespace

void compare_all_data(const Session& session, const std::function<void(uint64_t)>& waiting) {
  std::string refused = refused_changes(session);
  while (refused.empty() && session.data_record != nullptr &&
         session.data_record->bytes_to_compare() > 0) {
    waiting(session.data_record->bytes_to_compare());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    refused = refused_changes(session);
  }
  if (!refused.empty()) {
    throw CheckpointError(fmt::format(
        "the data has changed since the checkpoint was saved: {}. Put the file back, or set "
        "checkpoint.changed_data: accept",
        refused));
  }
}

void check_data(const Session& session) {
  if (const std::string refused = refused_changes(session); !refused.empty()) {
    throw CheckpointError(fmt::format(
        "the data has changed since the checkpoint that this run resumed from: {}. What was "
        "trained since then has seen other data: put the file back and resume from that checkpoint "
        "(checkpoint.resume), or set checkpoint.changed_data: accept",
        refused));
  }
}

void check_data_at_end(const Session& session) {
  check_data(session);
  if (session.data_record != nullptr && session.data_record->bytes_to_compare() > 0) {
    log_warning(fmt::format(
        "{} of data files could not be compared with the checkpoint before the run ended",
        describe_bytes(session.data_record->bytes_to_compare())));
  }
}

}  // namespace fp8train
