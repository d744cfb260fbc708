#pragma once
// Checks, while a run continues, that its data are those that its checkpoint was saved with.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "data/file_hashes.h"
#include "train/session.h"

namespace fp8train {

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
