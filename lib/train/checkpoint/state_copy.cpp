#include "train/checkpoint/state_copy.h"

namespace fp8train {
namespace {

CheckpointFile scaling_file(const StateCopy& copy) {
  CheckpointFile file = {.name = kScalingFile, .tensors = {}, .text = {}};
  for (const ScalingState::SavedTensor& tensor : copy.scaling) {
    file.tensors.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.data()});
  }
  return file;
}

}  // namespace

std::vector<FileRecord> write_state(const std::filesystem::path& partial, const StateCopy& copy) {
  std::vector<FileRecord> records;
  const auto write = [&](const CheckpointFile& file) {
    records.push_back(write_checkpoint_file(partial, file));
    read_back(partial, records.back());
  };
  for (const CheckpointFile& text : copy.texts) {
    write(text);
  }
  if (!copy.weights.parameters.empty()) {
    std::vector<std::vector<float>> transposed;
    write({kModelFile, hf_tensors(copy.model, copy.weights, transposed), {}});
  }
  if (!copy.scaling.empty()) {
    write(scaling_file(copy));
  }
  if (!copy.optimizer.file.name.empty()) {
    write(copy.optimizer.file);
  }
  return records;
}

}  // namespace fp8train
