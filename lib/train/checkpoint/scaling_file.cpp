#include "train/checkpoint/scaling_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/input_file.h"
#include "base/key_error.h"
#include "io/safetensors/tensor_source.h"
#include "io/strict_json.h"
#include "nn/moe_shape.h"
#include "train/checkpoint/state_copy.h"
#include "train/checkpoint/state_file.h"

namespace fp8train {
namespace {

/// Returns the names of a checkpoint's files; `wanted`: one where there is none.
std::vector<std::string> scaling_files(const std::filesystem::path& folder, bool wanted = false) {
  std::vector<std::string> names;
  std::error_code unseen;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unseen)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("scaling-") && name.ends_with(".safetensors")) {
      names.push_back(name);
    }
  }
  const bool is_only = has_file(folder / kScalingFile) || (wanted && names.empty());
  std::ranges::sort(names);
  return is_only ? std::vector<std::string>{kScalingFile} : names;
}

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
  std::string other;  ///< says which tensor has another shape

  /// Adds those of a tensor, if the file has any of its name and as many.
  void read(const TensorSource& source, ScalingState::SavedTensor tensor, int rank) {
    const SafetensorsEntry* const entry = source.find(tensor.name);
    const int64_t count = tensor.shape.front();
    if (entry == nullptr) {
      return;
    }
    const bool of_ranks = tensor.of_rank && entry->shape.size() == 2 && entry->shape.front() > 0;
    if ((entry->shape.size() != 1 && !of_ranks) || entry->shape.back() != count) {
      other = fmt::format("tensor '{}' has shape [{}], expected [{}{}]", tensor.name,
                          fmt::join(entry->shape, ", "), tensor.of_rank ? "ranks, " : "", count);
      return;
    }
    std::vector<int64_t> shape = tensor.shape;
    int64_t first = 0;
    if (of_ranks) {
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

/// Returns the rank of Group::state that has seen the tensors of an expert for `rank`: of those
/// with which it shares the experts.
size_t rank_that_has(int64_t expert, int64_t experts, size_t rank, const Mesh& mesh) {
  const int64_t sharing = mesh.size(Axis::expert);
  if (expert < 0 || sharing == 1) {
    return rank;
  }
  const int64_t tensor = mesh.size(Axis::tensor);  // which all see the same
  const int64_t in_stage = static_cast<int64_t>(rank) * tensor;
  return static_cast<size_t>((in_stage / sharing * sharing + expert / (experts / sharing)) /
                             tensor);
}

}  // namespace

bool has_scaling(const std::filesystem::path& folder) {
  return !scaling_files(folder).empty();
}

std::string scaling_file_of(const Mesh& mesh) {
  const int stages = mesh.size(Axis::pipeline);
  return stages == 1 ? kScalingFile
                     : fmt::format("scaling-{:05}-of-{:05}.safetensors",
                                   mesh.index(Axis::pipeline) + 1, stages);
}

std::vector<ScalingState::SavedTensor> scaling_tensors(const ScalingState& scaling,
                                                       const Mesh& mesh) {
  std::vector<ScalingState::SavedTensor> tensors = scaling.save();
  const std::string bad = scaling.impossible_value(tensors);
  std::vector<float> own;
  for (const ScalingState::SavedTensor& tensor : tensors) {
    if (tensor.of_rank) {
      own.insert(own.end(), tensor.values.begin(), tensor.values.end());
    }
  }
  const auto ranks = static_cast<size_t>(mesh.size(Group::state));
  std::vector<float> all = own;
  if (ranks > 1 && !own.empty()) {
    all.resize(own.size() * ranks);
    mesh.group(Group::state)
        ->all_gather(Communicator::host_stream(), own.data(), all.data(),
                     own.size() * sizeof(float))
        .wait();
  }
  int64_t experts = 0;
  for (const ScalingState::SavedTensor& tensor : tensors) {
    experts = std::max(experts, expert_of(tensor.name) + 1);
  }
  size_t begin = 0;
  for (ScalingState::SavedTensor& tensor : tensors) {
    if (!tensor.of_rank) {
      continue;
    }
    const size_t count = tensor.values.size();
    tensor.values.clear();
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t seen_by = rank_that_has(expert_of(tensor.name), experts, rank, mesh);
      const float* const values = all.data() + seen_by * own.size() + begin;
      tensor.values.insert(tensor.values.end(), values, values + count);
    }
    tensor.shape.insert(tensor.shape.begin(), mesh.size(Group::state));
    begin += count;
  }
  if (!bad.empty()) {  // only now: the other ranks exchange all the same
    throw NumericError(bad + ": training has diverged, and nothing of this step is written");
  }
  return mesh.index(Group::stage) == 0 ? tensors : std::vector<ScalingState::SavedTensor>();
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
  RankScales found;
  bool has_windows = false;
  for (const std::string& name : scaling_files(folder, true)) {
    const TensorSource source(SafetensorsFile(folder / name, reads));
    for (const ScalingState::SavedTensor& tensor : tensors) {
      found.read(source, tensor, rank);
    }
    if (found.tensors.empty()) {
      found.read_earlier(source, rank);
    }
    has_windows = has_windows || std::ranges::any_of(source.names(), [](const std::string& tensor) {
                    return tensor.ends_with(kWindows);
                  });
    if (manifest != nullptr) {
      require_hash(folder, *manifest, name, source.files().front().hash());
    }
    if (!found.other.empty()) {
      throw OtherScales(fmt::format(
          "{}: {}; resume with the plan it was saved with, or start from its weights (model.from)",
          (folder / name).string(), found.other));
    }
  }
  std::optional<int64_t> steps;
  for (ScalingState::SavedTensor& tensor : tensors) {
    if (tensor.name.ends_with(kWindows) && !has_windows) {
      // An earlier version did not begin windows again.
      steps = steps ? steps : steps_of_scaling(folder);
      const float left = tensor.values.front() - static_cast<float>(*steps);
      tensor.values.front() = std::max(0.0F, left);
      found.tensors.push_back(tensor);
    }
  }
  const bool any_of_rank = std::ranges::any_of(tensors, &ScalingState::SavedTensor::of_rank);
  if (found.saved_ranks != ranks && any_of_rank) {
    notes.push_back(
        fmt::format("each rank has its own scales of x and dy, which {} ranks have saved: rank r "
                    "of {} takes those of rank r mod {}",
                    found.saved_ranks, ranks, found.saved_ranks));
  }
  with_prefix<OtherScales>(folder.string() + ": ", [&] { scaling.load(found.tensors); });
  return notes;
}

}  // namespace fp8train
