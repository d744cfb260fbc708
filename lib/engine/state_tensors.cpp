#include "engine/state_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/key_error.h"
#include "base/math.h"

namespace fp8train {
namespace {

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < shape.rank(); ++i) {
    result.push_back(shape[i]);
  }
  return result;
}

/// Returns the box of the scales of a box's elements.
StateBox scales_of(const StateTensor& entry, const StateBox& box) {
  const TensorFormat& format = entry.tensor.format;
  const auto is_edge = [&](int64_t element) {
    return element % kRangeAlignment == 0 || element == entry.sharding.whole.count();
  };
  if (!is_edge(box.element) || !is_edge(box.element + box.columns) ||
      (!box.is_range() && !is_edge(box.width))) {
    throw KeyError(
        "parallelism.tensor",
        fmt::format(" cuts {} where {} of its elements share a scale; take fewer "
                    "ranks, or fp32 "
                    "for it (precision.moment1, precision.moment2, precision.master_weight)",
                    entry.name, format.block.columns));
  }
  const auto scales = [&](int64_t elements) { return stored_scales(format, elements); };
  return {.local = scales(box.local),
          .element = scales(box.element),
          .count = scales(box.count),
          .columns = scales(box.columns),
          .width = scales(box.width)};
}

std::pair<std::string, View> factor_of(const Parameter& parameter) {
  return {"gradient." + parameter.name + ".factor",
          View{&parameter.automatic->factor, DType::f32, {1}}};
}

/// Returns how many codes lie in a byte; 1 also if a code has more than one.
int64_t codes_in_byte(const Encoded& tensor) {
  return std::max(8 / facts_of(tensor.codes.dtype).bits, 1);
}

/// Whether a rank saves its part: of those that have the same one does.
bool is_saved_by(const Mesh& mesh, const Parameter& parameter) {
  return parameter.counts_in_norm && (parameter.sharding.cut || mesh.index(Group::tensor) == 0);
}

}  // namespace

std::vector<StateBox> boxes_of(const Sharding& part, int64_t first, int64_t count) {
  std::vector<StateBox> boxes;
  const int64_t width = part.width();
  int64_t run_begin = 0;
  for (const ShardRun& run : part.runs) {
    const int64_t run_end = run_begin + run.rows * part.columns;
    const int64_t end = std::min(first + count, run_end);
    for (int64_t at = std::max(first, run_begin); at < end; at += boxes.back().count) {
      const int64_t row = (at - run_begin) / part.columns;
      const int64_t column = (at - run_begin) % part.columns;
      StateBox box = {.local = at - first,
                      .element = (run.begin + row) * width + part.first_column + column,
                      .count = end - at,
                      .columns = end - at,
                      .width = width};
      if (part.columns < width) {
        const int64_t left = part.columns - column;  // in this row
        const bool has_rows = column == 0 && box.count >= 2 * part.columns;
        box.count = has_rows ? box.count / part.columns * part.columns : std::min(box.count, left);
        box.columns = has_rows ? part.columns : box.count;
      }
      boxes.push_back(box);
    }
    run_begin = run_end;
  }
  return boxes;
}

void StateTensor::for_each_box(
    const std::function<void(const std::string&, const View&, const StateBox&)>& visit) const {
  const View scales = tensor.scales.empty() ? View{} : saved_scales(tensor);
  const bool grouped = tensor.format.block.is_group();
  for (const StateBox& box : boxes_of(sharding, first, tensor.count())) {
    visit(name, saved_codes(tensor), saved_box(tensor, box));
    if (!scales.empty() && grouped) {
      visit(name + kScaleSuffix, scales, scales_of(*this, box));
    }
  }
  if (!scales.empty() && !grouped) {
    visit(name + kScaleSuffix, scales, {.count = 1, .columns = 1, .width = 1});
  }
}

std::vector<StateTensor> state_tensors(Engine& engine) {
  std::vector<StateTensor> found;
  const Optimizer& optimizer = engine.optimizer();
  const ParameterStore& store = engine.model().parameters();
  const Mesh& mesh = engine.mesh();
  const auto add = [&](const std::string& role, const Parameter& parameter, const Encoded& tensor) {
    const bool shares_scale = tensor.format.is_scaled() && tensor.format.block == per::tensor;
    if (!tensor.empty() && (parameter.updated.count() > 0 || shares_scale)) {
      found.push_back(
          {role + "." + parameter.name, tensor, parameter.sharding, parameter.updated.first,
           parameter.updated.whole && parameter.sharding.is_whole(), is_saved_by(mesh, parameter),
           parameter.used_rows * parameter.sharding.width()});
    }
  };
  for (const OptimizerState* state : optimizer.states()) {
    for (size_t i = 0; i < store.all().size(); ++i) {
      add(state->name(), *store.all()[i], state->of(i));
    }
  }
  for (const auto& parameter : store.all()) {
    // The files of weights have fp32 values, in one piece or in two, without loss. The base of
    // adapters is in no checkpoint.
    const bool is_base = engine.model().config().lora.is_on() && !parameter->trained;
    if (parameter->formats.value != TensorFormat{} && !parameter->formats.value.remainder &&
        !is_base) {
      add("value", *parameter, parameter->updated.value);
    }
  }
  return found;
}

std::vector<std::pair<std::string, View>> state_factors(Engine& engine) {
  std::vector<std::pair<std::string, View>> found;
  for (const auto& parameter : engine.model().parameters().all()) {
    if (parameter->automatic != nullptr) {
      found.push_back(factor_of(*parameter));
    }
  }
  return found;
}

View saved_scales(const Encoded& tensor) {
  return tensor.format.block == per::tensor ? View{tensor.scales.data, DType::f32, {1}}
                                            : tensor.scales;
}

View saved_codes(const Encoded& tensor) {
  const View& codes = tensor.codes;
  return codes_in_byte(tensor) > 1
             ? View{codes.data, DType::u8, {ceil_div(codes.count(), codes_in_byte(tensor))}}
             : codes;
}

StateBox saved_box(const Encoded& tensor, const StateBox& box) {
  const int64_t in_byte = codes_in_byte(tensor);
  return {.local = box.local / in_byte,
          .element = box.element / in_byte,
          .count = ceil_div(box.count, in_byte),
          .columns = ceil_div(box.columns, in_byte),
          .width = ceil_div(box.width, in_byte)};
}

namespace {

/// Calls visit(name, view, box) for each tensor that the rank saves of an entry.
template <typename Visit>
void for_each_saved(const StateTensor& entry, const Visit& visit) {
  if (entry.tensor.count() == 0 || !entry.is_saved) {
    return;
  }
  const bool has_first = entry.sharding.element(entry.first) == 0;
  entry.for_each_box([&](const std::string& name, const View& part, const StateBox& box) {
    if (name != entry.name && !entry.tensor.format.block.is_group() && !has_first) {
      return;  // is saved with the first element
    }
    const auto begin = static_cast<size_t>(box.local) * size_of(part.dtype);
    visit(name, View{part.as<std::byte>() + begin, part.dtype, {box.count}}, box);
  });
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const std::vector<StateTensor>& states) {
  std::vector<SavedTensor> saved;
  for (const StateTensor& entry : states) {
    for_each_saved(entry, [&](const std::string& name, const View& view, const StateBox& box) {
      const bool is_flat = name != entry.name || view.dtype == DType::u8;
      if (entry.whole) {
        saved.push_back(
            {name, view,
             is_flat ? std::vector<int64_t>{box.count} : extents(entry.sharding.whole)});
      } else if (box.is_range()) {
        saved.push_back({fmt::format("{}@{}", name, box.element), view, {box.count}});
      } else {
        saved.push_back(
            {fmt::format("{}@{},{}", name, box.element / box.width, box.element % box.width),
             view,
             {box.count / box.columns, box.columns}});
      }
    });
  }
  return saved;
}

std::vector<SavedTensor> saved_tensors(Engine& engine) {
  std::vector<SavedTensor> saved = saved_tensors(state_tensors(engine));
  for (const auto& parameter : engine.model().parameters().all()) {
    const Group alike = parameter->of_experts() ? Group::expert_state : Group::stage;
    if (parameter->automatic != nullptr && engine.mesh().index(alike) == 0) {
      const auto [name, factor] = factor_of(*parameter);
      saved.push_back({name, factor, {1}});
    }
  }
  return saved;
}

StateWriter state_writer(Engine& engine) {
  return state_writer(engine.model().parameters(), engine.strategy().mesh());
}

StateWriter state_writer(const ParameterStore& store, const Mesh& mesh) {
  const auto share = store.share();
  const bool has_all =
      mesh.size(Group::state) == mesh.world_size() && (share || mesh.size(Group::expert) == 1);
  // The first so many ranks of each such group write.
  const bool by_state = share || mesh.size(Group::expert) == 1;
  const Group sharing = by_state ? Group::state : Group::expert_state;
  const int of_group = share ? share->ranks : 1;
  StateWriter writer = {
      .writes = share ? share->writes : mesh.index(sharing) == 0,
      .in_parts = !has_all || store.shards() != nullptr || mesh.size(Group::expert) > 1};
  if (!has_all) {
    const MeshShape::Series group = mesh.shape().series(sharing);
    const auto writers = [&](int ranks) {
      int count = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        count += group.index(rank) < of_group ? 1 : 0;
      }
      return count;
    };
    writer.rank = writers(mesh.world_rank());
    writer.ranks = writers(mesh.world_size());
  } else if (share) {
    writer.rank = share->rank;
    writer.ranks = share->ranks;
  }
  return writer;
}

std::vector<StateTensor> saved_weights(const ParameterStore& store, const Mesh& mesh,
                                       const std::vector<std::vector<ModelTensor>>& files) {
  const StateWriter writer = state_writer(store, mesh);
  const bool has_owners = store.owners() != nullptr;
  std::set<std::string> wanted;
  const auto rank = static_cast<size_t>(mesh.world_rank());
  const auto ranks = static_cast<size_t>(mesh.world_size());
  for (size_t i = writer.in_parts ? 0 : rank; i < files.size(); i += writer.in_parts ? 1 : ranks) {
    for (const ModelTensor& tensor : files[i]) {
      wanted.insert(tensor.parameter);
    }
  }
  std::vector<StateTensor> saved;
  for (const auto& parameter : store.all()) {
    const bool is_shard = store.shards() != nullptr;
    const Encoded& value = is_shard ? parameter->updated.value : parameter->stored_value;
    if (value.count() > 0 && (files.empty() || wanted.contains(parameter->name)) &&
        (!writer.in_parts || (writer.writes && is_saved_by(mesh, *parameter) &&
                              !(has_owners && parameter->updated.elsewhere())))) {
      saved.push_back({.name = "value." + parameter->name,
                       .tensor = value,
                       .sharding = parameter->sharding,
                       .first = is_shard ? parameter->updated.first : 0,
                       .whole = false});
    }
  }
  return saved;
}

size_t state_copy_bytes(Engine& engine) {
  Decoder& model = engine.model();
  const StateWriter writer = state_writer(engine);
  size_t bytes = 0;
  if (writer.writes) {
    for (const StateTensor& entry : state_tensors(engine)) {
      for_each_saved(entry, [&](const std::string& /*name*/, const View& view,
                                const StateBox& /*box*/) { bytes += view.bytes(); });
    }
    if (engine.mesh().index(Group::stage) == 0) {
      bytes += state_factors(engine).size() * sizeof(float);
    }
  }
  std::vector<std::vector<ModelTensor>> files;
  if (!writer.in_parts || model.config().lora.is_on()) {
    files = model_files(model.config());
  }
  for (const StateTensor& saved :
       saved_weights(model.parameters(), engine.strategy().mesh(), files)) {
    bytes += static_cast<size_t>(saved.tensor.count()) * sizeof(float);
  }
  return bytes;
}

}  // namespace fp8train
