#include "train/checkpoint/scaling_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/safetensors/tensor_source.h"
#include "io/strict_json.h"
#include "train/checkpoint/state_copy.h"
#include "train/checkpoint/state_file.h"

namespace fp8train {
namespace {

/// The name in files of earlier versions of rank `rank`'s part of a tensor that each rank has of
/// its own.
std::string earlier_name(const std::string& name, int rank) {
  return rank == 0 ? name : fmt::format("{}.rank{}", name, rank);
}

/// Optimizer steps since scaling began, in a checkpoint whose windows all began with it.
int64_t steps_of_scaling(const std::filesystem::path& folder) {
  return with_state(folder, [](const nlohmann::json& json, const std::string& where) {
    return whole_number<int64_t>(json, "step", where) -
           whole_number_or<int64_t>(json, "scaling_begin", where, 0);
  });
}

constexpr std::string_view kWindows = ".updates_left";

/// The scales of one rank in a file, and how many ranks have saved scales of their own.
struct RankScales {
  std::vector<ScalingState::SavedTensor> tensors;
  int saved_ranks = 1;

  /// Adds those of a tensor, if the file has any of its name.
  void read(const TensorSource& source, ScalingState::SavedTensor tensor, int rank) {
    const SafetensorsEntry* const entry = source.find(tensor.name);
    if (entry == nullptr) {
      return;
    }
    const int64_t count = tensor.shape.front();
    std::vector<int64_t> shape = tensor.shape;
    int64_t first = 0;
    if (tensor.of_rank && entry->shape.size() == 2 && entry->shape.front() > 0) {
      saved_ranks = static_cast<int>(entry->shape.front());
      shape.insert(shape.begin(), saved_ranks);
      first = rank % saved_ranks * count;
    }
    tensor.values = source.read_f32(tensor.name, shape, first, count);
    tensors.push_back(std::move(tensor));
  }

  /// Adds those of an earlier version, which had all slots with one rule in one tensor.
  void read_earlier(const TensorSource& source, int rank) {
    for (const std::string& name : source.names()) {
      int saved = 1;
      while (source.find(earlier_name(name, saved)) != nullptr) {
        ++saved;
      }
      saved_ranks = std::max(saved_ranks, saved);
      const std::string of_rank = earlier_name(name, rank % saved);
      const std::vector<int64_t>& shape = source.find(of_rank)->shape;
      tensors.push_back({name, shape, source.read_f32(of_rank, shape)});
    }
  }
};

/// The tensors of all stages of a pipeline, which have different ones.
std::vector<ScalingState::SavedTensor> of_all_stages(
    const Mesh& mesh, std::vector<ScalingState::SavedTensor> tensors) {
  Communicator* const stages = mesh.group(Group::pipe);
  if (stages == nullptr) {
    return tensors;
  }
  nlohmann::json own = nlohmann::json::array();
  for (const ScalingState::SavedTensor& tensor : tensors) {
    own.push_back({tensor.name, tensor.shape, tensor.values});
  }
  std::vector<uint8_t> message = nlohmann::json::to_cbor(own);
  const std::vector<size_t> sizes = stages->all_gather_values(message.size());
  const size_t longest = *std::ranges::max_element(sizes);
  message.resize(longest);
  std::vector<uint8_t> all(longest * sizes.size());
  stages->all_gather(Communicator::host_stream(), message.data(), all.data(), longest).wait();
  tensors.clear();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(i * longest);
    const auto end = begin + static_cast<std::ptrdiff_t>(sizes[i]);
    for (const nlohmann::json& tensor : nlohmann::json::from_cbor(begin, end)) {
      tensors.push_back({tensor[0], tensor[1], tensor[2]});
    }
  }
  return tensors;
}

}  // namespace

bool has_scaling(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kScalingFile);
}

std::vector<ScalingState::SavedTensor> scaling_tensors(Engine& engine) {
  const ScalingState& scaling = engine.model().scaling();
  std::vector<ScalingState::SavedTensor> tensors = scaling.save();
  const std::string bad = scaling.impossible_value(tensors);
  std::vector<float> own;
  for (const ScalingState::SavedTensor& tensor : tensors) {
    if (tensor.of_rank) {
      own.insert(own.end(), tensor.values.begin(), tensor.values.end());
    }
  }
  const Mesh& mesh = engine.mesh();
  const auto ranks = static_cast<size_t>(mesh.size(Group::state));
  std::vector<float> all = own;
  if (ranks > 1 && !own.empty()) {
    all.resize(own.size() * ranks);
    mesh.group(Group::state)
        ->all_gather(Communicator::host_stream(), own.data(), all.data(),
                     own.size() * sizeof(float))
        .wait();
  }
  size_t begin = 0;
  for (ScalingState::SavedTensor& tensor : tensors) {
    if (!tensor.of_rank) {
      continue;
    }
    const size_t count = tensor.values.size();
    tensor.values.clear();
    for (size_t rank = 0; rank < ranks; ++rank) {
      const float* const values = all.data() + rank * own.size() + begin;
      tensor.values.insert(tensor.values.end(), values, values + count);
    }
    tensor.shape.insert(tensor.shape.begin(), mesh.size(Group::state));
    begin += count;
  }
  tensors = of_all_stages(mesh, std::move(tensors));
  if (!bad.empty()) {  // only now: the other ranks exchange all the same
    throw NumericError(bad + ": training has diverged, and nothing of this step is written");
  }
  return mesh.leads() ? tensors : std::vector<ScalingState::SavedTensor>();
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
  RankScales found;
  if (source.find(tensors.front().name) == nullptr) {
    found.read_earlier(source, rank);
  }
  const bool has_windows = std::ranges::any_of(
      source.names(), [](const std::string& name) { return name.ends_with(kWindows); });
  std::optional<int64_t> steps;
  for (ScalingState::SavedTensor& tensor : tensors) {
    if (tensor.name.ends_with(kWindows) && !has_windows) {
      // An earlier version did not begin windows again.
      steps = steps ? steps : steps_of_scaling(folder);
      const float left = tensor.values.front() - static_cast<float>(*steps);
      tensor.values.front() = std::max(0.0F, left);
      found.tensors.push_back(tensor);
    } else {
      found.read(source, tensor, rank);
    }
  }
  const bool any_of_rank = std::ranges::any_of(tensors, &ScalingState::SavedTensor::of_rank);
  if (found.saved_ranks != ranks && any_of_rank) {
    notes.push_back(
        fmt::format("each rank has its own scales of x and dy, which {} ranks have saved: rank r "
                    "of {} takes those of rank r mod {}",
                    found.saved_ranks, ranks, found.saved_ranks));
  }
  if (manifest != nullptr) {
    require_hash(folder, *manifest, kScalingFile, source.files().front().hash());
  }
  scaling.load(found.tensors);
  return notes;
}

}  // namespace fp8train
