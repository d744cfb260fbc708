#include "train/checkpoint/data_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "train/checkpoint/data_record.h"
#include "train/records/progress.h"

namespace fp8train {

bool accepts_changed_data(const Session& session) {
  return session.settings.checkpoint.changed_data == OnChange::accept;
}

std::string begin_data_record(Session& session, const std::filesystem::path& cache,
                              uint64_t at_once) {
  session.data_record = std::make_shared<DataRecord>(session.data.train, cache, at_once);
  const FileHashes& hashes = session.data_record->hashes();
  const uint64_t left = hashes.bytes_left();
  return fmt::format("hashes  {} data file{}{}", hashes.files().size(),
                     hashes.files().size() == 1 ? "" : "s",
                     left == 0 ? ""
                               : fmt::format(", {} of them while the run continues",
                                             describe_bytes(static_cast<double>(left))));
}

void check_data(const Session& session) {
  if (session.data_record == nullptr) {
    return;
  }
  const std::vector<std::string> changes = session.data_record->check();
  if (changes.empty()) {
    return;
  }
  if (accepts_changed_data(session)) {
    log_warning(fmt::format("data: {}", fmt::join(changes, "; ")));
    return;
  }
  throw CheckpointError(fmt::format(
      "the data has changed since the checkpoint that this run resumed from: {}. What was trained "
      "since then has seen other data: put the file back and resume from that checkpoint "
      "(checkpoint.resume), or set checkpoint.changed_data: accept",
      fmt::join(changes, "; ")));
}

void check_data_at_end(const Session& session) {
  check_data(session);
  if (session.data_record != nullptr && session.data_record->bytes_to_compare() > 0) {
    log_warning(fmt::format(
        "{} of data files could not be compared with the checkpoint before the run ended",
        describe_bytes(static_cast<double>(session.data_record->bytes_to_compare()))));
  }
}

}  // namespace fp8train
