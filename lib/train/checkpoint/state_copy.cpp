#include "train/checkpoint/state_copy.h"

#include <algorithm>
#include <iterator>

namespace fp8train {
namespace {

CheckpointFile scaling_file(const StateCopy& copy) {
  CheckpointFile file = {.name = copy.scaling_file, .tensors = {}, .text = {}};
  for (const ScalingState::SavedTensor& tensor : copy.scaling) {
    file.tensors.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.data()});
  }
  return file;
}

FileRecord write(const std::filesystem::path& partial, const CheckpointFile& file) {
  FileRecord record = write_checkpoint_file(partial, file);
  read_back(partial, record);
  return record;
}

}  // namespace

std::vector<FileRecord> write_state(const std::filesystem::path& partial, const StateCopy& copy) {
  std::vector<FileRecord> records;
  for (const CheckpointFile& text : copy.texts) {
    records.push_back(write(partial, text));
  }
  if (!copy.weights.in_parts) {
    std::ranges::move(write_model_files(partial, copy), std::back_inserter(records));
  } else if (!copy.weights.own_file.empty()) {
    CheckpointFile parts = {.name = copy.weights.own_file, .tensors = {}, .text = {}};
    for (const SavedTensor& part : saved_tensors(copy.weights.own)) {
      parts.tensors.push_back({part.name, part.view.dtype, part.shape, part.view.data});
    }
    write(partial, parts);
  }
  if (!copy.scaling.empty()) {
    records.push_back(write(partial, scaling_file(copy)));
  }
  if (!copy.optimizer.file.name.empty()) {
    records.push_back(write(partial, copy.optimizer.file));
  }
  return records;
}

std::vector<FileRecord> write_model_files(const std::filesystem::path& partial,
                                          const StateCopy& copy) {
  std::vector<FileRecord> records;
  for (const CheckpointFile& file : model_files(copy.weights, partial)) {
    records.push_back(write(partial, file));
  }
  return records;
}

}  // namespace fp8train
