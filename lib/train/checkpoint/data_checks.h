#pragma once
// Checks, while a run goes on, that its data are those that its checkpoint was saved with.

#include <filesystem>
#include <string>

#include "train/session.h"

namespace fp8train {

/// Whether data other than the checkpoint's are accepted, with a warning (checkpoint.changed_data).
bool accepts_changed_data(const Session& session);

/// Begins to hash the data files. Large files are read while the run continues. Returns a line for
/// the user. Throws DataError.
std::string begin_data_record(Session& session, const std::filesystem::path& cache);

/// Between steps: throws CheckpointError where a data file, of which not all could be compared
/// before, turns out to differ from the checkpoint that the run went on from; warns where
/// checkpoint.changed_data is accept.
void check_data(const Session& session);
/// The same; warns where not all data could be compared before the run ended.
void check_data_at_end(const Session& session);

}  // namespace fp8train
