#include "train/checkpoint/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/machine.h"
#include "comm/majority.h"
#include "device/device_questions.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 20;  // of a GPU's memory that is copied at a time

uint64_t hash_view(Device& device, const View& view, uint64_t hash, std::vector<std::byte>& piece) {
  const size_t bytes = view.empty() ? 0 : view.bytes();
  const auto* const data = static_cast<const std::byte*>(view.data);
  for (size_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - begin);
    const void* source = data + begin;
    if (!is_host(device)) {
      piece.resize(kPieceBytes);
      device.copy_to_host(piece.data(), source, count);
      source = piece.data();
    }
    hash = content_hash(source, count, hash);
    section_advances();
  }
  return hash;
}

/// Whether all ranks hold the tensor alike between steps: the largest magnitudes of some tensors
/// are those that a rank has seen itself.
bool is_replicated(const ScalingState::SavedTensor& tensor) {
  return !tensor.of_rank && !tensor.name.ends_with(".amax");
}

/// A hash as ranks send it; 0 where a stage has fewer.
struct Hashed {
  uint64_t hash = 0;
  Group group = Group::state;  ///< which has the same
};

/// Returns the ranks that should hold the same as one whose hash is another one; empty: there are
/// none.
std::vector<int> replicas_that_differ(const Mesh& mesh, const std::vector<Hashed>& hashes) {
  std::map<std::pair<int, Group>, std::vector<int>> groups;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const auto& [hash, group] = hashes[static_cast<size_t>(rank)];
    if (group != Group::pipe || hash != 0) {
      groups[{mesh.shape().series(group).color(rank), group}].push_back(rank);
    }
  }
  for (const auto& [color, ranks] : groups) {
    const uint64_t first = hashes[static_cast<size_t>(ranks.front())].hash;
    if (std::ranges::any_of(
            ranks, [&](int rank) { return hashes[static_cast<size_t>(rank)].hash != first; })) {
      return ranks;
    }
  }
  return {};
}

[[noreturn]] void report_difference(Communicator& comm, const std::string& name,
                                    const std::vector<int>& ranks,
                                    const std::vector<Hashed>& of_all, int64_t step) {
  constexpr size_t kMost = 8;
  std::vector<uint64_t> hashes;
  for (const int rank : ranks) {
    hashes.push_back(of_all[static_cast<size_t>(rank)].hash);
  }
  const std::string host = this_machine().host;
  const std::vector<int> differ = ranks_that_differ(hashes);
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(differ.size(), kMost); ++i) {
    const int rank = ranks[static_cast<size_t>(differ[i])];
    named.push_back(fmt::format("rank {} (on {})", rank, text_of_rank(comm, host, rank)));
  }
  const bool all = differ.size() == hashes.size();
  throw DeviceError(fmt::format(
      "after step {} ranks no longer hold the same bits of {}: {}{} {}. Memory or a computation "
      "has failed there; nothing of this step is saved. Leave that node out, and the same command "
      "continues from the last checkpoint",
      step, name, fmt::join(named, ", "), differ.size() > kMost ? " and others" : "",
      all ? "differ from each other, and which one is right is unknown"
          : "differ from the other ranks"));
}

}  // namespace

std::vector<ReplicaHash> hash_replicas(Engine& engine) {
  std::vector<ReplicaHash> hashes;
  std::vector<std::byte> piece;
  Device& device = engine.device();
  const auto group_of = [](const Parameter& parameter) {
    return parameter.of_experts()   ? Group::expert_state
           : parameter.sharding.cut ? Group::state
                                    : Group::stage;
  };
  if (engine.model().config().tie_word_embeddings && engine.mesh().size(Axis::pipeline) > 1) {
    hashes.push_back({.name = "the tied embeddings", .group = Group::pipe});
  }
  engine.strategy().for_each_replica([&](const Parameter& parameter, const Encoded& tensor) {
    uint64_t hash = hash_view(device, tensor.codes, 0, piece);
    hash = hash_view(device, tensor.scales, hash, piece);
    if (!hashes.empty() && hashes.front().group == Group::pipe &&
        parameter.name == "embedding.weight") {
      hashes.front().hash = hash;
    }
    hashes.push_back({parameter.name, hash, group_of(parameter)});
  });
  for (const ScalingState::SavedTensor& tensor : engine.model().scaling().save()) {
    if (is_replicated(tensor)) {
      hashes.push_back({tensor.name,
                        content_hash(tensor.values.data(), tensor.values.size() * sizeof(float)),
                        Group::stage});
    }
  }
  return hashes;
}

void compare_replicas(const Mesh& mesh, const std::vector<ReplicaHash>& mine, int64_t step) {
  Hashed of_groups[] = {
      {0, Group::state}, {0, Group::expert_state}, {0, Group::stage}, {0, Group::pipe}};
  for (const ReplicaHash& one : mine) {
    for (auto& [hash, group] : of_groups) {
      if (group == one.group && one.hash != 0) {
        hash = content_hash(&one.hash, sizeof(one.hash), hash);
      }
    }
  }
  if (std::ranges::all_of(of_groups, [&](const Hashed& all) {
        return replicas_that_differ(mesh, mesh.gather_values(all)).empty();
      })) {
    return;
  }
  const std::vector<size_t> counts = mesh.gather_values(mine.size());
  for (size_t i = 0; i < *std::ranges::max_element(counts); ++i) {
    const ReplicaHash one = i < mine.size() ? mine[i] : ReplicaHash();
    const std::vector<Hashed> hashes = mesh.gather_values(Hashed{one.hash, one.group});
    const std::vector<int> ranks = replicas_that_differ(mesh, hashes);
    if (!ranks.empty()) {
      report_difference(*mesh.world(), text_of_rank(*mesh.world(), one.name, ranks.front()), ranks,
                        hashes, step);
    }
  }
}

}  // namespace fp8train
