#include "train/watch/flight_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "train/records/environment.h"

namespace fp8train {
namespace {

using Json = nlohmann::ordered_json;

std::string host_of(const RankIdentity& identity) {
  return identity.host.data();
}

std::string describe_operation(const FlightOperation& operation) {
  return fmt::format("{} {} of communicator {}, {} bytes", operation.name, operation.sequence,
                     operation.communicator, operation.bytes);
}

Json to_json(const FlightOperation& operation) {
  Json json = {{"name", operation.name},
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

std::string describe(const FlightState& state) {
  const FlightOperation* const waits_for = state.waits_for();
  return fmt::format("step {}, in {} for {:.1f} s{}", state.step, name_of(state.where()),
                     state.seconds(),
                     waits_for != nullptr ? " (" + describe_operation(*waits_for) + ")" : "");
}

std::string to_json(const FlightRecord& record) {
  Json json = {{"reason", record.reason},
               {"time", utc_time()},
               {"rank", record.rank},
               {"ranks", record.ranks.empty() ? Json() : Json(record.ranks.size())},
               {"host", host_of(record.identity)},
               {"process", record.identity.process}};
  json.update(to_json(record.state));
  Json& others = json["other_ranks"] = Json::array();
  for (int rank = 0; rank < static_cast<int>(record.ranks.size()); ++rank) {
    if (rank != record.rank) {
      const RankIdentity& other = record.ranks[static_cast<size_t>(rank)];
      others.push_back({{"rank", rank}, {"host", host_of(other)}, {"process", other.process}});
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8train
