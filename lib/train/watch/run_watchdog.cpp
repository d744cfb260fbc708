#include "train/watch/run_watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <initializer_list>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"
#include "comm/launch.h"

namespace fp8train {
namespace {

constexpr unsigned kLastSeconds = 20;  // that the report may take
constexpr auto kOthersReport = std::chrono::seconds(1);
constexpr auto kStore = std::chrono::seconds(5);  // that a flight record may take

SectionSeconds limits_of(const WatchdogSettings& settings) {
  SectionSeconds limits = {};
  const auto limit = [&limits](Section section) -> double& {
    return limits[static_cast<size_t>(section)];
  };
  limit(Section::start_up) = settings.start_up;
  limit(Section::data) = settings.data;
  limit(Section::step) = settings.step;
  limit(Section::evaluation) = settings.evaluation;
  limit(Section::sample) = settings.evaluation;
  limit(Section::save) = settings.save;
  limit(Section::end) = settings.end;
  return limits;
}

/// Often enough for the shortest limit; 0: there is none.
double look_interval(const SectionSeconds& limits) {
  double shortest = 0;
  for (const double limit : limits) {
    shortest = limit > 0 && (shortest == 0 || limit < shortest) ? limit : shortest;
  }
  return shortest == 0 ? 0 : std::clamp(shortest / 20, 0.01, 1.0);
}

/// A sentence about where it is, or why not.
std::string store_at(const std::filesystem::path& folder, const std::filesystem::path& file,
                     const std::string& text) {
  std::error_code unseen;
  if (!std::filesystem::is_directory(folder, unseen)) {
    return "";
  }
  try {
    write_file_atomically(file, text);
  } catch (const std::exception& error) {
    return fmt::format(". No flight record: {}", error.what());
  }
  return ". More in " + file.string();
}

/// Past all buffers and locks of streams.
void write_to_standard_error(const std::string& line) {
  for (size_t written = 0; written < line.size();) {
    const ssize_t bytes = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (bytes <= 0) {
      return;
    }
    written += static_cast<size_t>(bytes);
  }
}

}  // namespace

RunWatchdog::RunWatchdog(const WatchdogSettings& limits, std::filesystem::path folder)
    : folder_(std::move(folder)), rank_(rank_of_launcher()), identity_(identity_of_this_rank()) {
  recorder_.set_limits(limits_of(limits));
}

RunWatchdog& RunWatchdog::start(const WatchdogSettings& limits,
                                const std::filesystem::path& folder) {
  // Never destroyed: it watches the process to its end.
  static RunWatchdog* const watchdog = new RunWatchdog(limits, folder);
  record_flight(&watchdog->recorder_);
  if (const double interval = look_interval(limits_of(limits)); interval > 0) {
    std::thread([interval] { watchdog->watch(interval); }).detach();
  }
  watchdog->recorder_.enter(Section::start_up);
  return *watchdog;
}

void RunWatchdog::watch_ranks(Communicator* comm) {
  const auto ranks =
      comm != nullptr ? comm->all_gather_values(identity_) : std::vector<RankIdentity>();
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = comm;
  if (comm != nullptr) {
    ranks_ = ranks;
    rank_ = comm->rank();
  }
}

void RunWatchdog::watch(double interval) {
  const std::chrono::duration<double> pause(interval);
  uint64_t changes = 0;
  RunningTime unchanged(2 * interval);
  while (true) {
    std::this_thread::sleep_for(pause);
    const FlightState state = recorder_.read();
    if (state.changes != changes) {
      changes = state.changes;
      unchanged = RunningTime(2 * interval);
    } else if (state.limit > 0 && unchanged.seconds() * 1e9 > static_cast<double>(state.limit)) {
      expire(state);
    }
  }
}

void RunWatchdog::expire(const FlightState& state) {
  end_process_within(kLastSeconds, kExitWatchdog);
  const std::string why =
      fmt::format("watchdog: {} took longer than {:g} s", name_of(state.where()),
                  static_cast<double>(state.limit) / 1e9);
  write_to_standard_error(fmt::format("error: {}\n", report(state, why)));
  end_other_ranks();
  end_process(kExitWatchdog);
}

/// Others whose time is over write their own records first.
void RunWatchdog::end_other_ranks() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ranks_.size() <= 1 || comm_ == nullptr) {
    return;
  }
  std::this_thread::sleep_for(kOthersReport);
  try {
    comm_->fail(kExitWatchdog);
  } catch (const std::exception&) {  // this process ends, and with it what its launcher watches
    static_cast<void>(0);
  }
}

std::string RunWatchdog::report(const FlightState& state, const std::string& why) {
  FlightRecord record = {.reason = why, .state = state};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    record.rank = rank_;
    record.ranks = static_cast<int>(ranks_.size());
    record.identity = identity_;
    record.others = observe_others(ranks_, rank_);
  }
  std::string text =
      fmt::format("{}. Rank {} (process {} on {}): {}", why, record.rank, record.identity.process,
                  record.identity.host.data(), describe(state));
  const std::string others = describe(record.others);
  if (!others.empty()) {
    text += ". Others: " + others;
  }
  return text + store(record);
}

/// On a thread of its own: a file system that does not answer may be what is reported.
std::string RunWatchdog::store(const FlightRecord& record) const {
  const std::filesystem::path file = folder_ / fmt::format("flight-{:05}.json", record.rank);
  auto promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> outcome = promise->get_future();
  try {
    std::thread([promise, file, folder = folder_, text = to_json(record)] {
      promise->set_value(store_at(folder, file, text));
    }).detach();
  } catch (const std::system_error& error) {
    return fmt::format(". No flight record: {}", error.what());
  }
  return outcome.wait_for(kStore) == std::future_status::ready
             ? outcome.get()
             : fmt::format(". No flight record: {} does not answer", folder_.string());
}

std::string RunWatchdog::report_failed_wait(const std::string& why) {
  std::string text = report(recorder_.failed_state().value_or(recorder_.read()), why);
  std::this_thread::sleep_for(kOthersReport);
  return text;
}

WatchedRanks::WatchedRanks(RunWatchdog* watchdog, Communicator& comm) : watchdog_(watchdog) {
  if (watchdog_ != nullptr) {
    watchdog_->watch_ranks(&comm);
  }
}

WatchedRanks::~WatchedRanks() {
  if (watchdog_ != nullptr) {
    watchdog_->watch_ranks(nullptr);
  }
}

EndSection::~EndSection() {
  if (FlightRecorder* const recorder = flight_recorder()) {
    recorder->enter(Section::end);
  }
}

}  // namespace fp8train
