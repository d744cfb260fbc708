#pragma once
// A run's record of its data files, so that it does not resume with data other than it was saved
// with: a checkpoint notes name, size and hash of every training file, and a resumed run compares.
// Hashes are made once and stored in the folder of the run (data/file_hashes.h). The first rank has
// one.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/file_hashes.h"
#include "train/session.h"

namespace fp8train {

/// The hashes of the data files of a run, for checkpoints and for the check of a resumed run.
class DataRecord {
 public:
  /// `cache`: the file of hashes in the run's folder. Reads data up to FileHashes::kAtOnce. Throws
  /// DataError.
  DataRecord(const Corpus& corpus, const std::filesystem::path& cache,
             uint64_t at_once = FileHashes::kAtOnce);

  /// Returns the list of files for state.json. A file that has not been read to its end yet is
  /// noted with the hash that it is expected to have, or with its times.
  nlohmann::ordered_json noted() const;

  struct Comparison {
    std::vector<std::string> changes;  ///< a line for each file that differs
    std::vector<std::string> doubts;   ///< a line for each file that cannot be compared
  };
  /// Compares with what a checkpoint noted. Files whose hash is not known yet are compared later,
  /// by check(). Throws nlohmann::json::exception where `noted` is malformed.
  Comparison compare(const nlohmann::json& noted);

  /// Returns a line for each file that turned out to differ since the last call. Returns at once.
  /// Throws DataError if a file could not be read.
  std::vector<std::string> check();

  /// Bytes of files that are still to be compared.
  uint64_t bytes_to_compare() const;

  const FileHashes& hashes() const { return hashes_; }

 private:
  FileHashes hashes_;
  std::map<size_t, std::string> expected_;  // by the file's number: hashes to be compared
  int64_t seen_ = -1;
};

/// Whether data other than the checkpoint's are accepted, with a warning (checkpoint.changed_data).
bool accepts_changed_data(const Session& session);

/// Begins to hash the data files. What is beyond `at_once` bytes is read while the run continues.
/// `cache` may be empty: then no hash is stored. Throws DataError.
void begin_data_record(Session& session, const std::filesystem::path& cache,
                       uint64_t at_once = FileHashes::kAtOnce);

/// Waits until all data files that the checkpoint has hashes of are hashed, and compares them, for
/// a run that is not started. `waiting` is called meanwhile with the bytes that are left. Throws
/// CheckpointError if one differs, or warns if checkpoint.changed_data is accept.
void compare_all_data(const Session& session, const std::function<void(uint64_t)>& waiting);

/// Compares, between two steps, the data files that have been hashed since with those of the
/// checkpoint that the run continues. Throws CheckpointError if one differs, or warns if
/// checkpoint.changed_data is accept.
void check_data(const Session& session);

/// Compares them after the last step, and warns if some data could not be compared before the run
/// ended. Throws as check_data() does.
void check_data_at_end(const Session& session);

}  // namespace fp8train
