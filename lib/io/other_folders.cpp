#include "io/other_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <vector>

namespace fp8train {
namespace {

namespace fs = std::filesystem;

/// The names in a folder, sorted; empty where it cannot be listed.
std::vector<std::string> names_in(const fs::path& folder) {
  constexpr size_t kMaxNames = 100'000;
  std::vector<std::string> names;
  std::error_code unseen;
  for (fs::directory_iterator entry(folder, unseen), end; entry != end && names.size() < kMaxNames;
       entry.increment(unseen)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The snapshot that refs/main names, or the only one; empty where nobody can tell.
std::string snapshot_of(const fs::path& folder, const std::vector<std::string>& snapshots) {
  std::string revision;
  std::ifstream(folder / "refs" / "main") >> revision;
  if (std::find(snapshots.begin(), snapshots.end(), revision) != snapshots.end()) {
    return revision;
  }
  return snapshots.size() == 1 ? snapshots.front() : "";
}

std::string describe_cache(const fs::path& folder) {
  const std::vector<std::string> snapshots = names_in(folder / "snapshots");
  const std::string which = snapshot_of(folder, snapshots);
  return fmt::format("it is a folder of the Hub's cache: name {}",
                     which.empty() ? "one of the folders in its snapshots"
                                   : (folder / "snapshots" / which).string());
}

}  // namespace

std::string describe_other_folder(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  const auto has = [&](const char* name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  const auto first_with = [&](const std::vector<std::string>& ends) -> std::string {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(ends.begin(), ends.end(),
                         [&](const std::string& end) { return name.ends_with(end); });
    });
    return found == names.end() ? "" : *found;
  };
  if (has("snapshots") && (has("blobs") || has("refs"))) {
    return describe_cache(folder);
  }
  if (has("adapter_config.json")) {
    return "it holds an adapter and not a whole model: train it on with model.lora.from, or copy "
           "the config.json of its base model into it to read both as one model";
  }
  const std::string weights = first_with({".safetensors"});
  if (weights.find("-of-") != std::string::npos) {
    return fmt::format(
        "it holds {}, but not model.safetensors.index.json, which says what the "
        "other files are: download the folder again",
        weights);
  }
  if (!weights.empty() && !has("model.safetensors")) {
    return fmt::format(
        "it holds {}: weights in the form of transformers are called "
        "model.safetensors, so rename the file if its tensors have those names",
        weights);
  }
  if (const std::string other =
          first_with({".gguf", ".bin", ".pt", ".pth", ".ckpt", ".msgpack", ".h5"});
      !other.empty() && !has("model.safetensors")) {
    return fmt::format(
        "it holds {}: weights in other formats than safetensors are not read "
        "(unpickling .bin and .pt runs code); convert them with transformers' "
        "save_pretrained",
        other);
  }
  return "";
}

}  // namespace fp8train
