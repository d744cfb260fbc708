#include "train/watch/run_watchdog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/names.h"
#include "base/signals.h"
#include "base/text.h"
#include "comm/launch.h"
#include "train/records/environment.h"

namespace fp8train {
namespace {

constexpr unsigned kLastSeconds = 20;  // that the report may take
constexpr auto kOthersReport = std::chrono::seconds(1);
constexpr auto kStore = std::chrono::seconds(5);  // that a flight record may take

/// The state of a process as the operating system reports it.
enum class ProcessState : uint8_t { running, sleeping, waiting_for_disk, stopped, ended };
constexpr std::pair<ProcessState, std::string_view> kProcessStates[] = {
    {ProcessState::running, "running"},
    {ProcessState::sleeping, "sleeping"},
    {ProcessState::waiting_for_disk, "waiting for a disk"},
    {ProcessState::stopped, "stopped"},
    {ProcessState::ended, "ended"}};

/// Another rank, as far as it can be seen from here.
struct ObservedRank {
  int rank = 0;
  RankIdentity identity;
  std::optional<ProcessState> process_state;  ///< nothing: on another machine

  /// Whether it is stopped or has ended.
  bool is_halted() const {
    return process_state == ProcessState::stopped || process_state == ProcessState::ended;
  }
};

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

using Json = nlohmann::ordered_json;

std::string host_of(const RankIdentity& identity) {
  return identity.host.data();
}

/// From /proc; `ended` where there is no such process.
ProcessState state_of_process(int process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos || name_end + 2 >= text.size()) {
    return ProcessState::ended;
  }
  switch (text[name_end + 2]) {
    case 'R':
      return ProcessState::running;
    case 'S':
      return ProcessState::sleeping;
    case 'D':
      return ProcessState::waiting_for_disk;
    case 'T':
    case 't':
      return ProcessState::stopped;
    default:
      return ProcessState::ended;
  }
}

std::string describe_operation(const FlightOperation& operation) {
  return fmt::format("{} {} of communicator {}, {} bytes", operation.name.data(),
                     operation.sequence, operation.communicator, operation.bytes);
}

Json to_json(const FlightOperation& operation) {
  Json json = {{"name", operation.name.data()},
               {"communicator", operation.communicator},
               {"sequence", operation.sequence},
               {"bytes", operation.bytes},
               {"step", operation.step}};
  if (operation.ended != 0) {
    json["seconds"] = static_cast<double>(operation.ended - operation.begun) * 1e-9;
  }
  return json;
}

Json to_json(const FlightState& state) {
  Json json = {{"step", state.step},
               {"section", name_of(state.where())},
               {"seconds", state.seconds()},
               {"limit", static_cast<double>(state.limit) * 1e-9}};
  const FlightOperation* const waits_for = state.waits_for();
  json["waits_for"] = waits_for != nullptr ? to_json(*waits_for) : Json();
  Json& last = json["operations"] = Json::array();
  const uint64_t stored = std::min<uint64_t>(state.operations, FlightState::kOperations);
  for (uint64_t number = state.operations - stored; number < state.operations; ++number) {
    last.push_back(to_json(state.ring[number % FlightState::kOperations]));
  }
  return json;
}

RankIdentity identity_of_this_rank() {
  RankIdentity identity = {.process = getpid()};
  gethostname(identity.host.data(), identity.host.size() - 1);
  return identity;
}

/// Looks at all ranks but `own_rank`. Ranks on other machines have their identity only.
std::vector<ObservedRank> observe_others(const std::vector<RankIdentity>& ranks, int own_rank) {
  std::vector<ObservedRank> others;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) == own_rank) {
      continue;
    }
    ObservedRank other = {.rank = static_cast<int>(rank), .identity = ranks[rank]};
    if (ranks[rank].host == ranks[static_cast<size_t>(own_rank)].host) {
      other.process_state = state_of_process(other.identity.process);
    }
    others.push_back(other);
  }
  return others;
}

/// Returns "step 7, in exchange for 5.1 s (all_to_all 31 of communicator 2, 4096 bytes)".
std::string describe(const FlightState& state) {
  const FlightOperation* const waits_for = state.waits_for();
  return fmt::format("step {}, in {} for {:.1f} s{}", state.step, name_of(state.where()),
                     state.seconds(),
                     waits_for != nullptr ? " (" + describe_operation(*waits_for) + ")" : "");
}

std::string describe(const ObservedRank& rank) {
  return fmt::format(
      "rank {} (process {} on {}{})", rank.rank, rank.identity.process, host_of(rank.identity),
      rank.process_state ? fmt::format(", {}", name_in(kProcessStates, *rank.process_state)) : "");
}

/// Returns "rank 1 (process 124 on n1, stopped)", for the ranks that are halted, or for all if none
/// is. Names four ranks at most, and counts the others. Empty if there are no others.
std::string describe(const std::vector<ObservedRank>& others) {
  constexpr size_t kMaxNamed = 4;
  std::vector<std::string> seen;
  const bool some_halted = std::ranges::any_of(others, &ObservedRank::is_halted);
  for (const ObservedRank& other : others) {
    if (!some_halted || other.is_halted()) {
      seen.push_back(describe(other));
    }
  }
  return fmt::format("{}", fmt::join(shortened(std::move(seen), kMaxNamed), "; "));
}

Json to_json(const std::vector<ObservedRank>& others) {
  Json all = Json::array();
  for (const ObservedRank& other : others) {
    Json& one = all.emplace_back(Json{{"rank", other.rank},
                                      {"host", host_of(other.identity)},
                                      {"process", other.identity.process}});
    if (other.process_state) {
      one["process_state"] = name_in(kProcessStates, *other.process_state);
    }
  }
  return all;
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
  std::unique_lock<std::mutex> lock(mutex_);
  const int rank = rank_;
  const std::vector<ObservedRank> others = observe_others(ranks_, rank);
  Json record = {{"reason", why},
                 {"time", utc_time()},
                 {"rank", rank},
                 {"ranks", ranks_.empty() ? Json() : Json(ranks_.size())},
                 {"host", host_of(identity_)},
                 {"process", identity_.process}};
  lock.unlock();
  record.update(to_json(state));
  record["other_ranks"] = to_json(others);
  return fmt::format("{}. Rank {} (process {} on {}): {}{}{}", why, rank, identity_.process,
                     host_of(identity_), describe(state),
                     others.empty() ? "" : ". Others: " + describe(others),
                     store(rank, json_text(record, 2) + "\n"));
}

/// On a thread of its own: a file system that does not answer may be what is reported.
std::string RunWatchdog::store(int rank, const std::string& record) const {
  const std::filesystem::path file = folder_ / fmt::format("flight-{:05}.json", rank);
  auto promise = std::make_shared<std::promise<std::string>>();
  std::future<std::string> outcome = promise->get_future();
  try {
    std::thread([promise, file, folder = folder_, record] {
      promise->set_value(store_at(folder, file, record));
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

}  // namespace fp8train
