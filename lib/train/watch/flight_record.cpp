#include "train/watch/flight_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "train/records/environment.h"

namespace fp8train {
namespace {

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

}  // namespace

RankIdentity identity_of_this_rank() {
  RankIdentity identity = {.process = getpid()};
  gethostname(identity.host.data(), identity.host.size() - 1);
  return identity;
}

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

std::string describe(const std::vector<ObservedRank>& others) {
  constexpr size_t kMost = 4;
  std::vector<const ObservedRank*> seen;
  const bool some_halted = std::ranges::any_of(others, &ObservedRank::is_halted);
  for (const ObservedRank& other : others) {
    if (!some_halted || other.is_halted()) {
      seen.push_back(&other);
    }
  }
  std::string text;
  for (size_t i = 0; i < std::min(seen.size(), kMost); ++i) {
    text += (i == 0 ? "" : "; ") + describe(*seen[i]);
  }
  return seen.size() > kMost ? fmt::format("{}; and {} more", text, seen.size() - kMost) : text;
}

std::string to_json(const FlightRecord& record) {
  Json json = {{"reason", record.reason},
               {"time", utc_time()},
               {"rank", record.rank},
               {"ranks", record.ranks > 0 ? Json(record.ranks) : Json()},
               {"host", host_of(record.identity)},
               {"process", record.identity.process}};
  json.update(to_json(record.state));
  Json& others = json["other_ranks"] = Json::array();
  for (const ObservedRank& other : record.others) {
    Json one = {{"rank", other.rank},
                {"host", host_of(other.identity)},
                {"process", other.identity.process}};
    if (other.process_state) {
      one["process_state"] = name_in(kProcessStates, *other.process_state);
    }
    others.push_back(std::move(one));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8train
