#include "train/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/key_error.h"
#include "base/on_exit.h"
#include "base/text.h"
#include "config/show.h"

namespace fp8train {
namespace {

/// Lets collectives that are started take as long as the watchdog leaves to the calling thread's
/// section, and no less than comm.timeout, until the returned object's end.
auto extend_timeout(Communicator& comm) {
  constexpr double kAnyTime = 1e9;
  const double before = comm.timeout();
  const FlightRecorder* const recorder = flight_recorder();
  const double limit = recorder == nullptr ? before : recorder->limit(recorder->section());
  comm.set_timeout(limit == 0 ? kAnyTime : std::max(before, limit));
  return OnExit([&comm, before] { comm.set_timeout(before); });
}

/// Returns the facts in which a rank differs from rank 0: "optimizer.lr: 0.001 -> 0.002; ...".
std::string differences(const RunFacts& of_first, const RunFacts& other) {
  constexpr size_t kShown = 8;
  std::vector<std::string> found = changed_settings(of_first.settings, other.settings, true);
  if (found.empty() && of_first.settings != other.settings) {
    found.emplace_back("the text of the configuration");
  }
  for (const auto& [name, first, second] :
       {std::tuple("version of the program", &of_first.version, &other.version),
        {"tokens of data.train", &of_first.data, &other.data}}) {
    if (*first != *second) {
      found.push_back(fmt::format("{}: {} -> {}", name, *first, *second));
    }
  }
  if (of_first.schedule != other.schedule) {
    found.emplace_back("the content of parallelism.schedule_file");
  }
  return fmt::format("{}", fmt::join(shortened(std::move(found), kShown), "; "));
}

RunFacts facts_in(const std::string& text) {
  std::vector<std::string> parts = split(text, '\0');
  parts.resize(4);
  return {parts[0], parts[1], parts[2], parts[3]};
}

}  // namespace

std::string text_of_rank(Communicator& comm, const std::string& mine, int root) {
  size_t size = mine.size();
  comm.broadcast(Communicator::host_stream(), &size, sizeof(size), root).wait();
  std::string text = comm.rank() == root ? mine : std::string(size, '\0');
  if (size > 0) {
    comm.broadcast(Communicator::host_stream(), text.data(), size, root).wait();
  }
  return text;
}

void agree_on_run(Communicator& comm, const RunFacts& mine) {
  constexpr std::string_view kEnd("\0", 1);
  const std::string text = fmt::format("{1}{0}{2}{0}{3}{0}{4}", kEnd, mine.settings, mine.version,
                                       mine.data, std::hash<std::string>{}(mine.schedule));
  const std::vector<size_t> all = comm.all_gather_values(std::hash<std::string>{}(text));
  const auto differs = std::ranges::find_if(all, [&](size_t hash) { return hash != all[0]; });
  if (differs == all.end()) {
    return;
  }
  const auto rank = static_cast<int>(differs - all.begin());
  const std::string of_first = text_of_rank(comm, text, 0);
  const std::string other = text_of_rank(comm, text, rank);
  throw ConfigError(fmt::format(
      "rank {0} was started with other settings, data or another version of the program than "
      "rank 0: all nodes must see the same files and the same environment; rank 0 -> rank {0}: {1}",
      rank, differences(facts_in(of_first), facts_in(other))));
}

void agree_on_step(Communicator& comm, int64_t step, const std::filesystem::path& where) {
  const std::vector<int64_t> all = comm.all_gather_values(step);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw CheckpointError(fmt::format(
          "rank 0 continues from step {} and rank {} from step {}: all nodes must see the same "
          "checkpoints in {}",
          all[0], rank, all[rank], where.string()));
    }
  }
}

void check_shared_folder(Communicator& comm, const std::filesystem::path& folder) {
  constexpr double kPatience = 10;
  const Stopwatch waiting;
  const std::filesystem::path lock = folder / "run.lock";
  std::error_code unseen;
  while (!std::filesystem::exists(lock, unseen) && waiting.seconds() < kPatience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::vector<uint8_t> seen =
      comm.all_gather_values(static_cast<uint8_t>(std::filesystem::exists(lock, unseen) ? 1 : 0));
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] == 0) {
      throw KeyError("output_dir",
                     fmt::format(": rank {} does not see {}, which rank 0 has made: it must be the "
                                 "same folder on all nodes, of a shared file system",
                                 rank, folder.string()));
    }
  }
}

namespace {

/// From the first rank of a group; null: it has one.
void copy_from_first(Communicator* group, Device& device, const View& values) {
  if (group != nullptr && !values.empty()) {
    group->broadcast(device.stream(), values.data, values.bytes(), 0).wait();
  }
}

}  // namespace

void share_weights(const Mesh& mesh, Device& device, const ParameterStore& parameters) {
  Communicator* const state = mesh.group(Group::state);
  Communicator* const expert_state = mesh.group(Group::expert_state);
  if (parameters.shards() != nullptr) {
    // Each rank has its own parts; scales follow from the whole, which all have computed.
    for (const bool of_experts : {false, true}) {
      for (const View& scales : parameters.shards()->shared_scales(of_experts)) {
        copy_from_first(of_experts ? expert_state : state, device, scales);
      }
    }
    return;
  }
  Communicator* const tensor = mesh.group(Group::tensor);
  for (const auto& parameter : parameters.all()) {
    const Encoded& value = parameter->stored_value;
    for (const View& part : {value.codes, value.scales}) {
      copy_from_first(parameter->of_experts() ? expert_state : state, device, part);
      copy_from_first(parameter->sharding.cut ? nullptr : tensor, device, part);
    }
  }
}

void wait_for_first_rank(Communicator& comm) {
  const auto timeout = extend_timeout(comm);
  comm.barrier().wait();
}

int64_t found_by_first_rank(Communicator& comm, const std::function<int64_t()>& find) {
  const int64_t mine = comm.rank() == 0 ? find() : 0;
  wait_for_first_rank(comm);
  return comm.all_gather_values(mine).front();
}

bool first_rank_says(Communicator& comm, bool mine) {
  return comm.all_gather_values(static_cast<uint8_t>(mine ? 1 : 0)).front() != 0;
}

bool Heartbeat::first_rank_works(bool mine) {
  const auto timeout = extend_timeout(*comm_);
  return first_rank_says(*comm_, mine);
}

void Heartbeat::beat() {
  constexpr double kLongest = 1;  // seconds between two beats; fewer where waits are short
  if (comm_->size() > 1 && since_beat_.seconds() > std::min(kLongest, comm_->timeout() / 4)) {
    first_rank_works(true);
    since_beat_.restart();
  }
}

void Heartbeat::end() {
  while (first_rank_works(false)) {
    section_advances();
  }
}

int ranks_on_these_cores(Communicator& comm) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof(mine), &mine);
  const std::vector<cpu_set_t> all = comm.all_gather_values(mine);
  int sharing = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    cpu_set_t common;
    CPU_AND(&common, &mine, &all[static_cast<size_t>(rank)]);
    const bool same_node = comm.topology().node_of(rank) == comm.node();
    sharing += same_node && CPU_COUNT(&common) > 0 ? 1 : 0;
  }
  return std::max(sharing, 1);
}

}  // namespace fp8train
