#include "train/checkpoint/data_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/quantities.h"
#include "train/checkpoint/data_record.h"

namespace fp8train {

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
