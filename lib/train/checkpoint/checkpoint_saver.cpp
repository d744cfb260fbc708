#include "train/checkpoint/checkpoint_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

/// A run's folder that is gone was removed or unmounted: one made in its place would hold this
/// checkpoint alone, perhaps on another disk.
void require_folder(const std::filesystem::path& root) {
  std::error_code failure;
  if (!std::filesystem::is_directory(root, failure)) {
    throw DeviceError(fmt::format(
        "{} is gone: it was removed, renamed or unmounted during the run; bring it back to "
        "save there",
        root.string()));
  }
}

CheckpointFile scaling_file(const StateCopy& copy) {
  CheckpointFile file = {.name = copy.scaling_file, .tensors = {}, .text = {}};
  for (const ScalingState::SavedTensor& tensor : copy.scaling) {
    file.tensors.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.data()});
  }
  return file;
}

FileRecord written(const std::filesystem::path& partial, const CheckpointFile& file) {
  FileRecord record = write_checkpoint_file(partial, file);
  read_back(partial, record);
  return record;
}

}  // namespace

std::vector<FileRecord> write_state(const std::filesystem::path& partial, const StateCopy& copy) {
  std::vector<FileRecord> records;
  for (const CheckpointFile& text : copy.texts) {
    records.push_back(written(partial, text));
  }
  if (!copy.weights.in_parts) {
    std::ranges::move(write_model_files(partial, copy), std::back_inserter(records));
  } else if (!copy.weights.own_file.empty()) {
    CheckpointFile parts = {.name = copy.weights.own_file, .tensors = {}, .text = {}};
    for (const SavedTensor& part : saved_tensors(copy.weights.own)) {
      parts.tensors.push_back({part.name, part.view.dtype, part.shape, part.view.data});
    }
    written(partial, parts);
  }
  if (!copy.scaling.empty()) {
    records.push_back(written(partial, scaling_file(copy)));
  }
  if (!copy.optimizer.file.name.empty()) {
    records.push_back(written(partial, copy.optimizer.file));
  }
  return records;
}

std::vector<FileRecord> write_model_files(const std::filesystem::path& partial,
                                          const StateCopy& copy) {
  std::vector<FileRecord> records;
  for (const CheckpointFile& file : model_files(copy.weights, partial)) {
    records.push_back(written(partial, file));
  }
  return records;
}

CheckpointSaver::CheckpointSaver(std::filesystem::path root, bool async,
                                 CheckpointRetention retention, Communicator& comm,
                                 std::function<bool()> is_lost)
    : root_(std::move(root)),
      async_(async),
      retention_(std::move(retention)),
      comm_(&comm),
      is_lost_(std::move(is_lost)) {}

CheckpointSaver::~CheckpointSaver() {
  if (job_.valid() && async_) {
    job_.wait();
  }
  if (leads() && phase_ != Phase::none && phase_ != Phase::retain && !is_lost()) {
    discard_partial(root_, copy_.step);
  }
}

/// Returns the first rank that failed, or -1.
int CheckpointSaver::first_failed(const std::vector<Report>& all) {
  const auto first = std::ranges::find_if(
      all, [](const Report& report) { return report.failure != Failure::none; });
  return first == all.end() ? -1 : static_cast<int>(first - all.begin());
}

/// Errors of files become part of the report; others end the run.
template <typename Work>
CheckpointSaver::Report CheckpointSaver::attempt(const Work& work) {
  const Stopwatch watch;
  Report report;
  const auto failed = [&](Failure failure, const std::exception& error) {
    report.failure = failure;
    failure_ = error.what();
  };
  try {
    work(report);
  } catch (const NumericError& error) {
    failed(Failure::numeric, error);
  } catch (const DeviceError& error) {
    failed(Failure::save, error);
  } catch (const std::filesystem::filesystem_error& error) {  // a folder cannot be looked at
    failed(Failure::save, error);
  } catch (const CheckpointError& error) {
    failed(Failure::save, error);
  }
  report.seconds = watch.seconds();
  report.done = true;
  return report;
}

void CheckpointSaver::start(const std::function<void(StateCopy&)>& copy, bool deletes_older) {
  check(phase_ == Phase::none, "one save is in flight at a time");
  entered_.restart();
  current_ = {};
  deletes_older_ = deletes_older;
  const Report begun = attempt([&](Report&) { copy(copy_); });
  const std::vector<Report> copied = comm_->all_gather_values(begun);
  if (const int rank = first_failed(copied); rank >= 0) {
    const std::string why = text_of_rank(*comm_, failure_, rank);
    if (copied[static_cast<size_t>(rank)].failure == Failure::numeric) {
      throw NumericError(why);
    }
    throw DeviceError(why);  // of the device: no file has been touched
  }
  current_.step = copy_.step;
  phase_ = Phase::begin;
  report_ = attempt([&](Report&) {
    if (leads()) {
      require_folder(root_);
      begin_checkpoint(root_, copy_.step);
    }
  });
  end_phase(comm_->all_gather_values(report_));
  current_.stall_seconds += entered_.seconds();
}

void CheckpointSaver::begin(Phase phase) {
  phase_ = phase;
  report_ = {};
  job_ = std::async(async_ ? std::launch::async : std::launch::deferred, [this, phase] {
    return attempt([this, phase](Report& report) { work_on(phase, report); });
  });
}

void CheckpointSaver::work_on(Phase phase, Report& report) {
  const std::filesystem::path partial = partial_checkpoint(root_, copy_.step);
  if (phase == Phase::write || phase == Phase::join) {
    for (FileRecord& record :
         phase == Phase::write ? write_state(partial, copy_) : write_model_files(partial, copy_)) {
      report.bytes += record.bytes;
      records_.push_back(std::move(record));
    }
  } else if (phase == Phase::check) {
    check_joined(partial, copy_.model, copy_.weights);
  } else if (phase == Phase::publish && leads()) {
    for (const std::string& parts : copy_.weights.part_files) {
      std::filesystem::remove(partial / parts);
    }
    commit_checkpoint(root_, copy_.step, copy_.run_id, records_, Verify::sizes);
    retention_.mark_verified(copy_.step);
  } else if (phase == Phase::retain && leads()) {
    for (const std::string& failure : tidy_checkpoints(root_, copy_.step)) {
      retention_.note(failure);
    }
    if (deletes_older_) {
      retention_.apply();
    }
  }
}

/// Returns the phase after one with which all ranks are done.
CheckpointSaver::Phase CheckpointSaver::next_phase() const {
  switch (phase_) {
    case Phase::begin:
      return Phase::write;
    case Phase::write:
      return copy_.weights.in_parts ? Phase::join : Phase::publish;
    case Phase::join:
      return Phase::check;
    case Phase::check:
      return Phase::publish;
    default:
      return Phase::retain;
  }
}

std::optional<SaveResult> CheckpointSaver::progress(bool wait) {
  entered_.restart();
  while (phase_ != Phase::none) {
    const bool ready = job_.valid() && (wait || job_.wait_for(std::chrono::seconds(0)) ==
                                                    std::future_status::ready);
    if (ready) {
      report_ = job_.get();
    }
    if (wait) {
      wait_for_first_rank(*comm_);  // and all others: disks are not equally fast
    }
    report_.is_lost = is_lost();
    const std::vector<Report> all = comm_->all_gather_values(report_);
    if (!std::all_of(all.begin(), all.end(), [](const Report& report) { return report.done; })) {
      break;
    }
    if (all.front().is_lost) {
      phase_ = Phase::none;
      break;
    }
    end_phase(all);
  }
  current_.stall_seconds += entered_.seconds();
  if (result_) {
    result_->stall_seconds = current_.stall_seconds;
  }
  return std::exchange(result_, std::nullopt);
}

/// Ends this phase, with which all ranks are done, and begins the next one.
void CheckpointSaver::end_phase(const std::vector<Report>& all) {
  std::string failure;
  if (const int rank = first_failed(all); rank >= 0) {
    failure = text_of_rank(*comm_, failure_, rank);
    failure = all.size() > 1 ? fmt::format("rank {}: {}", rank, failure) : failure;
  }
  double slowest = 0;
  for (const Report& report : all) {
    slowest = std::max(slowest, report.seconds);
    current_.bytes += report.bytes;
  }
  if (phase_ == Phase::retain) {
    end_retention(failure);
    return;
  }
  current_.write_seconds += slowest;
  if (!failure.empty()) {
    end_save(failure);
    phase_ = Phase::none;
    return;
  }
  const Phase next = next_phase();
  if (next == Phase::write) {
    records_.clear();
  } else if (next == Phase::publish) {
    add_records();
  } else if (next == Phase::retain) {
    end_save({});
  }
  begin(next);
}

/// Sends the records of all ranks to the first one, which has those of its own files.
void CheckpointSaver::add_records() {
  std::string own;
  for (const FileRecord& record : records_) {
    own += fmt::format("{} {} {}\n", record.name, record.bytes, record.xxh3_128);
  }
  const std::vector<size_t> sizes = comm_->all_gather_values(own.size());
  const size_t most = std::ranges::max(sizes);
  own.resize(most, ' ');
  std::string all(most * sizes.size(), ' ');
  if (most > 0) {
    comm_->all_gather(Communicator::host_stream(), own.data(), all.data(), most).wait();
  }
  std::istringstream others(all.substr(most));  // of all ranks but the first
  for (FileRecord file; leads() && others >> file.name >> file.bytes >> file.xxh3_128;) {
    records_.push_back(file);
  }
}

void CheckpointSaver::end_save(const std::string& failure) {
  if (!failure.empty() && leads()) {
    discard_partial(root_, copy_.step);
  }
  result_ = current_;
  result_->saved = failure.empty();
  result_->failure = failure;
}

void CheckpointSaver::end_retention(const std::string& failure) {
  phase_ = Phase::none;
  for (const std::string& note : retention_.take_notes()) {
    log_warning(note);
  }
  if (!failure.empty()) {
    log_warning("older checkpoints stay: " + failure);
  }
}

size_t CheckpointSaver::copy_bytes() const {
  size_t bytes = 0;
  for (const auto* all : {&copy_.weights.memory, &copy_.optimizer.memory}) {
    for (const HostMemory& memory : *all) {
      bytes += memory.bytes();
    }
  }
  return bytes;
}

}  // namespace fp8train
