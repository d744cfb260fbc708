#include "train/checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "io/model_source.h"
#include "io/safetensors/adapters.h"
#include "io/safetensors/safetensors.h"
#include "model/lora.h"
#include "train/checkpoint/base_weights.h"
#include "train/checkpoint/saved_state.h"
#include "train/checkpoint/value_checks.h"
#include "train/checkpoint/weights_source.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

void warn_of_unread(Decoder& model, const TensorSource& source) {
  const std::vector<std::string> names = unread_tensors(model, source);
  if (names.empty()) return;
  log_warning(fmt::format(
      "the weights hold '{}'{}, which a model with this config.json does not have: not read",
      names.front(),
      names.size() == 1 ? "" : fmt::format(" and {} more tensors", names.size() - 1)));
}

}  // namespace

std::vector<std::string> unread_tensors(Decoder& model, const TensorSource& source) {
  std::set<const SafetensorsEntry*> read;
  for (const std::string& parameter : model.parameters().names()) {
    for (const HfPiece& piece : hf_pieces(model.config(), parameter)) {
      read.insert(source.find(piece.name));
    }
  }
  std::vector<std::string> unread;
  for (const std::string& name : source.names()) {
    if (read.count(source.find(name)) == 0 &&
        !follows_from_config(model.config(), source.unwrapped(name))) {
      unread.push_back(name);
    }
  }
  return unread;
}

namespace {

bool has_one_scale(const Parameter& parameter) {
  return codec_of(parameter.formats.value) == Codec::tensor;
}

/// The elements of a parameter that a rank stores: the first, and their number.
std::pair<int64_t, int64_t> stored_elements(const Parameter& parameter) {
  const Parameter::Updated& updated = parameter.updated;
  return updated.whole ? std::pair(int64_t{0}, parameter.shape.count())
                       : std::pair(updated.first, updated.count());
}

/// Stores a rank's part of a tensor with one scale. `amax`: of the whole.
void store_part(Device& device, const Encoded& part, std::vector<float> values, float amax) {
  const bool is_empty = values.empty();
  values.resize(std::max<size_t>(values.size(), 1));  // each rank has the scale
  HostStored stored(part.format, std::ssize(values));
  stored.scales.front() = 1.0F;
  stored.scales.back() = amax;
  ops::store(Communicator::host_stream(),
             {.x = ConstView{values.data(), DType::f32, {std::ssize(values)}},
              .to = stored.tensor,
              .step = CastStep::codes});
  if (is_empty) {
    copy_from_host(device, part.scales, stored.scales.data());
  } else {
    upload(device, stored, part);
  }
}

/// Sets a parameter of which other ranks may have parts.
void load_value(Device& device, const Parameter& parameter, const WeightsSource& weights,
                const Magnitudes& magnitudes) {
  const Encoded& part = parameter.updated.value;
  const auto agreed = magnitudes.find(parameter.name);
  const bool is_agreed = agreed != magnitudes.end();
  const bool is_whole = parameter.updated.whole || (has_one_scale(parameter) && !is_agreed);
  const auto [first, count] =
      is_whole ? std::pair(int64_t{0}, parameter.shape.count()) : stored_elements(parameter);
  std::vector<float> values = weights.read(parameter.name, parameter.sharding, first, count);
  if (is_whole) {
    const Sharding all = whole_of(parameter.sharding.whole, parameter.sharding.index);
    const float amax =
        is_agreed ? agreed->second
        : scale_needs_whole(parameter)
            ? largest_magnitude(weights.read(parameter.name, all, 0, all.whole.count()))
            : 0.0F;
    set_value(device, parameter, values.data(), amax);
  } else if (is_agreed) {
    store_part(device, part, std::move(values), agreed->second);
  } else if (count > 0) {
    upload(device, stored_in(part.format, values), part);
  }
}

void load_values(Device& device, const ModelConfig& config, const TensorSource& source,
                 MissingTokens missing, std::vector<const Parameter*> parameters,
                 const Magnitudes& magnitudes = {}) {
  std::map<std::string, const Parameter*> scales_of;  // of weights that are codes
  std::erase_if(parameters, [&](const Parameter* parameter) {
    const std::string& name = parameter->name;
    const bool is_scale = name.ends_with(kCodeScales);
    if (is_scale) scales_of[name.substr(0, name.rfind('.')) + ".weight"] = parameter;
    return is_scale;
  });
  // In the order of a file, which is then read once; those that it lacks come first.
  std::ranges::stable_sort(parameters, {}, [&](const Parameter* parameter) {
    const SafetensorsEntry* const entry =
        source.find(hf_pieces(config, parameter->name).front().name);
    return entry == nullptr ? 0 : entry->begin;
  });
  const WeightsSource weights = {source, config, missing};
  for (const Parameter* const parameter : parameters) {
    if (const auto scales = scales_of.find(parameter->name); scales != scales_of.end()) {
      load_codes(device, config, source, *parameter, *scales->second);
      continue;
    }
    load_value(device, *parameter, weights, magnitudes);
  }
}

std::vector<const Parameter*> parameters_of(const ParameterStore& store, bool adapters) {
  std::vector<const Parameter*> found;
  for (const auto& parameter : store.all()) {
    if (is_adapter(parameter->name) == adapters) found.push_back(parameter.get());
  }
  return found;
}

}  // namespace

void load_weights(Device& device, const ModelConfig& config, const ParameterStore& store,
                  const TensorSource& source, MissingTokens missing, const Magnitudes& magnitudes) {
  load_values(device, config, source, missing, parameters_of(store, false), magnitudes);
}

Magnitudes agreed_magnitudes(Engine& engine, const std::filesystem::path& folder,
                             MissingTokens missing) {
  Communicator* const ranks = engine.mesh().world();
  const StrategySettings& strategy = engine.settings().strategy;
  const ParameterFormats formats = parameter_formats(engine.settings().plan);
  if (ranks == nullptr || codec_of(formats.value) != Codec::tensor ||
      (strategy.layout.tensor == 1 && strategy.zero_stage == 0)) {
    return {};
  }
  const ParameterStore& store = engine.model().parameters();
  Magnitudes magnitudes;
  float failed = 0.0F;
  try {
    const TensorSource source(folder);
    const WeightsSource weights = {source, engine.model().config(), missing};
    for (const Parameter* const parameter : parameters_of(store, false)) {
      if (has_one_scale(*parameter)) {
        const auto [first, count] = stored_elements(*parameter);
        magnitudes[parameter->name] =
            largest_magnitude(weights.read(parameter->name, parameter->sharding, first, count));
      }
    }
  } catch (const Error&) {
    failed = 1.0F;
  }
  const std::vector<std::string> names = store.names();
  std::vector<float> own = {failed};
  for (const std::string& name : names) {
    const auto found = magnitudes.find(name);
    own.push_back(found == magnitudes.end() ? 0.0F : found->second);
  }
  std::vector<float> all(own.size() * static_cast<size_t>(ranks->size()));
  wait_for_first_rank(*ranks);  // disks are not equally fast
  ranks->all_gather(Communicator::host_stream(), own.data(), all.data(), own.size() * sizeof(float))
      .wait();
  for (size_t i = 0; i < all.size(); ++i) {
    float& largest = own[i % own.size()];
    largest = std::max(largest, all[i]);  // read_f32() refuses NaN
  }
  if (own.front() != 0.0F) {
    return {};
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (const auto found = magnitudes.find(names[i]); found != magnitudes.end()) {
      found->second = own[i + 1];
    }
  }
  return magnitudes;
}

TensorSource load_adapters(Device& device, Decoder& model, const std::filesystem::path& folder,
                           SafetensorsFile::Reads reads) {
  TensorSource source(SafetensorsFile(folder / kAdapterFile, reads));
  load_values(device, model.config(), source, MissingTokens::refuse,
              parameters_of(model.parameters(), true));
  return source;
}

void load_weights(Device& device, Decoder& model, const TensorSource& source, MissingTokens missing,
                  const Magnitudes& magnitudes) {
  load_weights(device, model.config(), model.parameters(), source, missing, magnitudes);
  warn_of_unread(model, source);
}

namespace {

/// Whether the weights of a copy are adapters.
bool has_adapters(const WeightsCopy& copy) {
  return is_adapter(copy.files.front().front().parameter);
}

constexpr int64_t kPiece = int64_t{1} << 22;  // values that are written at a time
constexpr std::string_view kValue = "value.";

/// Throws where a value is not finite.
void check_finite(const ModelConfig& config, const StateTensor& part) {
  const std::string parameter = part.name.substr(kValue.size());
  const auto check_row = [&](int64_t local, int64_t element, int64_t count) {
    const float* const values = part.tensor.codes.as<float>() + local;
    const int64_t bad = first_impossible(values, DType::f32, count);
    const int64_t width = part.sharding.width();
    const int64_t row = (element + bad) / width;
    const int64_t column = (element + bad) % width;
    for (const HfPiece& piece : hf_pieces(config, parameter)) {
      if (bad < count && piece.begin <= row && row < piece.begin + piece.rows) {
        const int64_t index = piece.transposed ? column * piece.rows + row - piece.begin
                                               : (row - piece.begin) * width + column;
        throw NumericError(
            fmt::format("{}[{}] is {}: training has diverged, and nothing of this step is written",
                        piece.name, index, values[bad]));
      }
    }
  };
  for (const StateBox& box : boxes_of(part.sharding, part.first, part.tensor.count())) {
    box.for_each_row(check_row);
  }
}

/// Reads `count` values of the parameter of a tensor from element `first` on.
using ReadValues =
    std::function<void(const ModelTensor& tensor, int64_t first, int64_t count, float* to)>;

/// Writes a tensor as its file has it.
void write_tensor(const ModelTensor& tensor, const ReadValues& read, const ByteSink& sink) {
  const HfPiece& piece = tensor.piece;
  const int64_t columns = tensor.columns();
  const int64_t count = piece.rows * columns;
  const int64_t step = piece.transposed ? count : kPiece;
  std::vector<float> values;
  for (int64_t at = 0; at < count; at += step) {
    values.resize(static_cast<size_t>(std::min(step, count - at)));
    read(tensor, piece.begin * columns + at, static_cast<int64_t>(values.size()), values.data());
    if (piece.transposed) values = transposed(values, piece.rows, columns);
    sink(values.data(), values.size() * sizeof(float));
  }
}

/// Reads values of the parts that all ranks have written, or of this rank's copy.
ReadValues reader_of(const WeightsCopy& copy, const std::filesystem::path& folder) {
  if (copy.in_parts) {
    return [parts = std::make_shared<SavedState>(folder, copy.part_files)](
               const ModelTensor& tensor, int64_t first, int64_t count, float* to) {
      const auto bytes = parts->read(
          std::string(kValue) + tensor.parameter, DType::f32,
          {.element = first, .count = count, .columns = count, .width = tensor.columns()});
      std::memcpy(to, bytes.data(), bytes.size());
    };
  }
  std::map<std::string, const float*> values;
  for (const StateTensor& own : copy.own) {
    values[own.name.substr(kValue.size())] = own.tensor.codes.as<float>();
  }
  return [values](const ModelTensor& tensor, int64_t first, int64_t count, float* to) {
    std::copy_n(values.at(tensor.parameter) + first, count, to);
  };
}

}  // namespace

void copy_weights(Device& device, const ParameterStore& store, const ModelConfig& config,
                  const Mesh& mesh, WeightsCopy& into) {
  if (into.files.empty()) into.files = model_files(config, into.max_file_bytes);
  const StateWriter writer = state_writer(store, mesh);
  into.rank = static_cast<size_t>(mesh.world_rank());
  into.ranks = static_cast<size_t>(mesh.world_size());
  into.in_parts = writer.in_parts;
  into.part_files.clear();
  for (int rank = 0; writer.in_parts && rank < writer.ranks; ++rank) {
    into.part_files.push_back(
        fmt::format("weights-{:05}-of-{:05}.safetensors", rank + 1, writer.ranks));
  }
  into.own_file =
      writer.in_parts && writer.writes ? into.part_files[static_cast<size_t>(writer.rank)] : "";
  into.own = saved_weights(store, mesh, into.files);
  into.memory.resize(into.own.size());
  for (size_t i = 0; i < into.own.size(); ++i) {
    StateTensor& own = into.own[i];
    const int64_t count = own.tensor.count();
    void* const values = into.memory[i].resize(static_cast<size_t>(count) * sizeof(float));
    decode_to_host(device, own.tensor, static_cast<float*>(values));
    own.tensor = View{values, DType::f32, {count}};
    check_finite(config, own);
  }
}

std::vector<CheckpointFile> model_files(const WeightsCopy& copy,
                                        const std::filesystem::path& folder) {
  std::vector<CheckpointFile> files;
  if (copy.rank >= copy.files.size()) return files;
  const ReadValues read = reader_of(copy, folder);
  for (size_t i = copy.rank; i < copy.files.size(); i += copy.ranks) {
    CheckpointFile& file = files.emplace_back();
    file.name = has_adapters(copy) ? kAdapterFile : model_file_name(i, copy.files.size());
    for (const ModelTensor& tensor : copy.files[i]) {
      file.tensors.push_back(
          {tensor.piece.name, DType::f32, tensor.shape, nullptr,
           [&tensor, read](const ByteSink& sink) { write_tensor(tensor, read, sink); }});
    }
  }
  return files;
}

TensorSource own_weights(const std::filesystem::path& folder) {
  return holds_adapters(folder)
             ? TensorSource(SafetensorsFile(folder / kAdapterFile))
             : TensorSource(folder, [](size_t) { return SafetensorsFile::Reads::plain; });
}

void check_joined(const std::filesystem::path& folder, const ModelConfig& config,
                  const WeightsCopy& copy) {
  const TensorSource source = own_weights(folder);
  const WeightsSource weights = {source, config};
  for (const StateTensor& own : copy.own) {
    const std::string name = own.name.substr(kValue.size());
    const auto values = weights.read(name, own.sharding, own.first, own.tensor.count());
    if (!std::ranges::equal(values, std::span(own.tensor.codes.as<float>(), values.size()))) {
      throw CheckpointError(
          fmt::format("{}: {} cannot be read back as this rank has written it; "
                      "check the disk",
                      folder.string(), name));
    }
  }
}

std::string model_index(const WeightsCopy& copy) {
  std::map<std::string, std::string> file_of;
  uint64_t bytes = 0;
  for (size_t i = 0; i < copy.files.size(); ++i) {
    for (const ModelTensor& tensor : copy.files[i]) {
      file_of[tensor.piece.name] = model_file_name(i, copy.files.size());
      bytes += static_cast<uint64_t>(tensor.piece.rows * tensor.columns()) * sizeof(float);
    }
  }
  return copy.files.size() == 1 ? "" : model_index(file_of, bytes);
}

}  // namespace fp8train
