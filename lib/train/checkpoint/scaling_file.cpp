#include "train/checkpoint/scaling_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "io/safetensors/tensor_source.h"
#include "io/strict_json.h"
#include "train/checkpoint/state_copy.h"
#include "train/checkpoint/state_file.h"

namespace fp8train {
namespace {

/// The name in the file of rank `rank`'s part of a tensor that each rank has of its own.
std::string name_of_rank(const std::string& name, int rank) {
  return rank == 0 ? name : fmt::format("{}.rank{}", name, rank);
}

/// Optimizer steps since scaling began, in a checkpoint whose windows all began with it.
int64_t steps_of_scaling(const std::filesystem::path& folder) {
  return with_state(folder, [](const nlohmann::json& json, const std::string& where) {
    return whole_number<int64_t>(json, "step", where) -
           whole_number_or<int64_t>(json, "scaling_begin", where, 0);
  });
}

/// Returns how many ranks have saved their own of a tensor.
int ranks_of(const TensorSource& source, const std::string& name) {
  int ranks = 1;
  while (source.find(name_of_rank(name, ranks)) != nullptr) {
    ++ranks;
  }
  return ranks;
}

}  // namespace

bool has_scaling(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kScalingFile);
}

std::vector<ScalingState::SavedTensor> scaling_tensors(Engine& engine, Communicator& comm) {
  const bool leads = comm.rank() == 0;
  const ScalingState& scaling = engine.model().scaling();
  std::vector<ScalingState::SavedTensor> tensors;
  std::vector<ScalingState::SavedTensor> mine = scaling.save();
  const std::string bad = scaling.impossible_value(mine);
  for (ScalingState::SavedTensor& tensor : mine) {
    const size_t count = tensor.values.size();
    std::vector<float> all;
    if (tensor.of_rank && comm.size() > 1) {
      all.resize(count * static_cast<size_t>(comm.size()));
      comm.all_gather(Communicator::host_stream(), tensor.values.data(), all.data(),
                      count * sizeof(float))
          .wait();
    }
    if (leads) {
      tensors.push_back({tensor.name, tensor.shape, std::move(tensor.values)});
    }
    for (int rank = 1; leads && !all.empty() && rank < comm.size(); ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * rank;
      tensors.push_back({name_of_rank(tensor.name, rank),
                         tensor.shape,
                         {begin, begin + static_cast<std::ptrdiff_t>(count)}});
    }
  }
  if (!bad.empty()) {  // only now: the other ranks exchange all the same
    throw NumericError(bad + ": training has diverged, and nothing of this step is written");
  }
  return tensors;
}

std::vector<std::string> load_scaling(const std::filesystem::path& folder, ScalingState& scaling,
                                      int rank, int ranks, const CheckpointManifest* manifest) {
  scaling.restart();
  std::vector<ScalingState::SavedTensor> tensors = scaling.save();
  std::vector<std::string> notes;
  if (tensors.empty()) {
    return notes;
  }
  const auto reads =
      manifest == nullptr ? SafetensorsFile::Reads::plain : SafetensorsFile::Reads::hashed;
  const TensorSource source(SafetensorsFile(folder / kScalingFile, reads));
  for (ScalingState::SavedTensor& tensor : tensors) {
    if (tensor.name.ends_with(".updates_left") && source.find(tensor.name) == nullptr) {
      // An earlier version did not begin windows again.
      const auto steps = static_cast<float>(steps_of_scaling(folder));
      for (float& left : tensor.values) {
        left = std::max(0.0F, left - steps);
      }
      continue;
    }
    const int saved = tensor.of_rank ? ranks_of(source, tensor.name) : 1;
    tensor.values = source.read_f32(name_of_rank(tensor.name, rank % saved), tensor.shape);
    if (tensor.of_rank && saved != ranks && notes.empty()) {
      notes.push_back(
          fmt::format("each rank has its own scales of x and dy, which {} ranks have saved: rank r "
                      "of {} takes those of rank r mod {}",
                      saved, ranks, saved));
    }
  }
  if (manifest != nullptr) {
    require_hash(folder, *manifest, kScalingFile, source.hash());
  }
  scaling.load(tensors);
  return notes;
}

}  // namespace fp8train
