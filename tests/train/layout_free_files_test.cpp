// Checkpoints know tensors of the model and boxes of them: what any layout of ranks has written any
// other one reads to the same bits, and the files of weights are the same bytes.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"
#include "device/device.h"
#include "model/decoder.h"
#include "parallel/sharded_store.h"
#include "parallel/strategy.h"
#include "support/files.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/saved_state.h"
#include "train/checkpoint/scaling_file.h"

using namespace fp8train;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

enum class Cut : uint8_t { none, rows, columns, mixed };

struct Layout {
  const char* name;
  int data = 1, tensor = 1, stage = 0;
  Cut cut = Cut::none;
  int pipeline = 1, context = 1;

  int ranks() const { return data * context * tensor * pipeline; }
  Mesh mesh(int rank) const {
    return {
        {.pipeline = pipeline, .data = data, .context = context, .tensor = tensor}, rank, nullptr};
  }
};

constexpr Layout kLayouts[] = {
    {.name = "one rank"},
    {.name = "DDP", .data = 2},
    {.name = "ZeRO 1", .data = 2, .stage = 1},
    {.name = "ZeRO 2", .data = 4, .stage = 2},
    {.name = "ZeRO 3", .data = 8, .stage = 3},
    {.name = "rows", .tensor = 2, .cut = Cut::rows},
    {.name = "columns", .tensor = 4, .cut = Cut::columns},
    {.name = "mixed under ZeRO 3", .data = 2, .tensor = 2, .stage = 3, .cut = Cut::mixed},
    {.name = "stages under ZeRO 2", .data = 2, .stage = 2, .pipeline = 2},
    {.name = "context under DDP", .context = 4},
    {.name = "context under ZeRO 3", .data = 2, .stage = 3, .context = 2}};

/// Wide enough for groups of 128 elements in a rank's columns.
ModelConfig wide(ModelConfig model) {
  model.hidden_size = 256;
  model.head_dim = 128;
  model.intermediate_size = model.mlp == MlpKind::gelu ? 1024 : 512;
  model.num_hidden_layers = 1;
  return completed(model);
}

Sharding cut_of(const Layout& layout, int rank, const Parameter& parameter) {
  const Sharding whole = whole_of(parameter.shape, 0);
  std::vector<int64_t> pieces = parameter.matrices;
  if (pieces.empty()) {
    pieces = {whole.rows()};
  }
  const auto fits = [&](int64_t extent) {
    return extent % layout.tensor == 0 && extent / layout.tensor % kRangeAlignment == 0;
  };
  const bool by_columns = layout.cut == Cut::columns ||
                          (layout.cut == Cut::mixed && parameter.name.ends_with("down.weight"));
  if (layout.tensor == 1 || (by_columns && !fits(whole.width()))) {
    return whole;
  }
  if (by_columns) {
    return columns_of(whole, rank, layout.tensor);
  }
  return std::ranges::all_of(pieces, fits) ? rows_of_pieces(whole, pieces, rank, layout.tensor)
                                           : whole;
}

/// Parameters and moments of one rank.
class RankState {
  std::unique_ptr<Device> device_;

 public:
  const Mesh mesh;
  ParameterStore store;

  RankState(const ModelConfig& config, const Layout& layout, int rank)
      : device_(make_device(DeviceKind::cpu)), mesh(layout.mesh(rank)) {
    const std::unique_ptr<Device> meta = make_device(DeviceKind::meta);
    Decoder model(*meta, config, plan_named("fp32"), {.gradients = false});
    const Parameters& all = model.parameters().all();
    for (size_t i = 0; i < all.size(); ++i) {
      if (mesh.index(Axis::pipeline) != static_cast<int>(2 * i / all.size()) % layout.pipeline) {
        continue;
      }
      const auto& one = all[i];
      index_.push_back(i);
      const Sharding part = cut_of(layout, mesh.index(Group::tensor), *one);
      used_.push_back(one->used_rows * part.width());
      store.begin_unit();
      store.add({.name = one->name, .shape = part.shape(), .sharding = part});
    }
    StoreSharing sharing;
    if (layout.stage > 0) {
      const StrategySite site = {.mesh = mesh, .settings = {.zero_stage = layout.stage}};
      sharing.shards = [&, site](const ParameterStore& of) {
        return std::make_unique<ShardedStore>(of, shard_layout(of, site));
      };
    }
    store.allocate(*device_, true, sharing);
    for (const auto& one : store.all()) {
      for (const char* format : {"e4m3 group(128) current", "fp16 tensor current"}) {
        moments_.emplace_back(parse_format(format), one->updated.count());
      }
    }
  }

  Device& device() { return *device_; }

  /// Of each parameter two moments, of which one has a scale for each group and one a scale.
  std::vector<StateTensor> states() {
    std::vector<StateTensor> found;
    for (size_t i = 0; i < moments_.size(); ++i) {
      const Parameter& of = *store.all()[i / 2];
      found.push_back({(i % 2 == 0 ? "moment1." : "moment2.") + of.name, moments_[i].tensor,
                       of.sharding, of.updated.first,
                       store.shards() == nullptr && of.sharding.is_whole(),
                       mesh.index(Group::tensor) == 0 || of.sharding.cut});
    }
    return found;
  }

  /// Sets all bits by the element of the whole.
  void fill() {
    for (size_t i = 0; i < store.all().size(); ++i) {
      const Parameter& of = *store.all()[i];
      const Encoded& value = store.shards() ? of.updated.value : of.stored_value;
      for (int64_t at = 0; at < value.count(); ++at) {
        const auto element = static_cast<uint64_t>(of.sharding.element(of.updated.first + at));
        const bool is_padding = static_cast<int64_t>(element) >= used_[i];
        value.codes.as<float>()[at] =
            is_padding ? 0.0F : static_cast<float>(bits(index_[i], element) % 1000000) * 1e-3F;
      }
      for (HostStored* moment : {&moments_[2 * i], &moments_[2 * i + 1]}) {
        const auto size = static_cast<int64_t>(size_of(moment->tensor.format.dtype));
        const uint64_t role = 100 * static_cast<uint64_t>(size) + index_[i];
        for (int64_t at = 0; at < static_cast<int64_t>(moment->codes.size()); ++at) {
          const auto element =
              static_cast<uint64_t>(of.sharding.element(of.updated.first + at / size));
          moment->codes[static_cast<size_t>(at)] = static_cast<uint8_t>(bits(role, element) % 120);
        }
        const bool grouped = moment->tensor.format.block.is_group();
        const size_t scales = grouped ? moment->scales.size() : 1;
        for (size_t at = 0; at < scales; ++at) {
          const auto first = static_cast<int64_t>(at) * kRangeAlignment;
          const int64_t element = grouped ? of.sharding.element(of.updated.first + first) : 0;
          moment->scales[at] =
              1.0F + static_cast<float>(bits(role, static_cast<uint64_t>(element)));
        }
      }
    }
  }

  /// The bits of values, codes and scales.
  std::vector<uint8_t> content() {
    std::vector<uint8_t> all;
    const auto add = [&](const View& view) {
      const auto* const bytes = view.as<uint8_t>();
      all.insert(all.end(), bytes, bytes + (view.empty() ? 0 : view.bytes()));
    };
    for (const auto& parameter : store.all()) {
      add((store.shards() ? parameter->updated.value : parameter->stored_value).codes);
    }
    for (const StateTensor& state : states()) {
      add(state.tensor.codes);
      add(saved_scales(state.tensor));
    }
    return all;
  }

 private:
  static uint32_t bits(uint64_t parameter, uint64_t element) {
    return philox(parameter, 0, element).word[0];
  }

  std::vector<HostStored> moments_;
  std::vector<size_t> index_;  // of each parameter in the model
  std::vector<int64_t> used_;  // elements of each parameter: the rest of a vocabulary is padding
};

constexpr uint64_t kMaxFile = 600'000;

/// The files that a run of these ranks writes, up to `joins`: not yet the files of the model.
std::vector<FileRecord> write(const fs::path& root, const ModelConfig& config, const Layout& layout,
                              std::vector<StateCopy>& copies) {
  const fs::path partial = begin_checkpoint(root, 1);
  std::vector<FileRecord> records;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    RankState state(config, layout, rank);
    state.fill();
    StateCopy& copy = copies.emplace_back();
    copy.weights.max_file_bytes = kMaxFile;
    copy_weights(state.device(), state.store, config, state.mesh, copy.weights);
    if (rank == 0) {
      copy.texts.push_back({"model.safetensors.index.json", {}, model_index(copy.weights)});
    }
    if (state_writer(state.store, state.mesh).writes) {
      copy.optimizer.file.name = "optimizer-" + std::to_string(rank) + ".safetensors";
      for (const SavedTensor& saved : saved_tensors(state.states())) {
        HostMemory& memory = copy.optimizer.memory.emplace_back();
        void* const bytes = memory.resize(saved.view.bytes());
        std::memcpy(bytes, saved.view.data, saved.view.bytes());
        copy.optimizer.file.tensors.push_back({saved.name, saved.view.dtype, saved.shape, bytes});
      }
    }
    std::ranges::move(write_state(partial, copy), std::back_inserter(records));
  }
  return records;
}

fs::path save(const fs::path& root, const ModelConfig& config, const Layout& layout) {
  std::vector<StateCopy> copies;
  std::vector<FileRecord> records = write(root, config, layout, copies);
  const fs::path partial = partial_checkpoint(root, 1);
  for (const StateCopy& copy : copies) {
    if (copy.weights.in_parts) {
      std::ranges::move(write_model_files(partial, copy), std::back_inserter(records));
    }
  }
  for (const StateCopy& copy : copies) {
    if (copy.weights.in_parts) {
      check_joined(partial, config, copy.weights);
      fs::remove(partial / copy.weights.own_file);
    }
  }
  return commit_checkpoint(root, 1, "test", records);
}

void load(const fs::path& folder, const ModelConfig& config, RankState& state) {
  load_weights(state.device(), config, state.store, TensorSource(folder));
  const SavedState saved(folder);
  for (const StateTensor& entry : state.states()) {
    load_state(state.device(), saved, entry);
  }
}

ModelConfig model(const std::string& family) {
  return wide(family == "llama" ? test::small_llama_model() : test::small_gpt2_model());
}

}  // namespace

TEST_CASE("weights, moments and scales of 121 pairs of layouts are read to the same bits") {
  const ModelConfig config = model(GENERATE("llama", "gpt2"));
  const test::TempDir dir;
  std::vector<fs::path> folders;
  for (const Layout& from : kLayouts) {
    folders.push_back(save(dir / from.name, config, from));
    CAPTURE(from.name);
    size_t files = 0;
    for (const FileRecord& record : verify_checkpoint(folders.back()).files) {
      if (record.name.starts_with("model")) {
        ++files;
        CHECK((test::read_file(folders.back() / record.name) ==
               test::read_file(folders.front() / record.name)));
      }
    }
    CHECK(files > 4);
    CHECK_FALSE(fs::exists(folders.back() / "model.safetensors"));
    CHECK_FALSE(fs::exists(folders.back() / "weights-00001-of-00002.safetensors"));
  }
  CHECK(TensorSource(folders.back()).names().size() == model_tensors(config).size());
  for (const Layout& to : kLayouts) {
    for (int rank = 0; rank < to.ranks(); ++rank) {
      RankState expected(config, to, rank);
      expected.fill();
      const std::vector<uint8_t> content = expected.content();
      CHECK(content.size() > 100'000);
      for (size_t from = 0; from < folders.size(); ++from) {
        CAPTURE(kLayouts[from].name, to.name, rank);
        RankState found(config, to, rank);
        load(folders[from], config, found);
        CHECK((found.content() == content));
      }
    }
  }
}

TEST_CASE("scales that stages of a pipeline have saved are read from the files of all") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, test::small_llama("te-delayed"));
  ScalingState& scaling = engine.model().scaling();
  for (const auto& slot : scaling.slots()) {
    *slot->amax = 1.0F + static_cast<float>(slot->index);
  }
  double norm = 0;
  scaling.update(device->stream(), scaling.due(0), &norm);
  const std::vector<ScalingState::SavedTensor> saved = scaling.save();
  const test::TempDir dir;
  for (int stage = 0; stage < 2; ++stage) {
    const Mesh mesh({.pipeline = 2}, stage, nullptr);
    CheckpointFile file = {.name = scaling_file_of(mesh), .tensors = {}, .text = {}};
    for (const ScalingState::SavedTensor& tensor : saved) {
      if (tensor.name.starts_with("scaling.layers.1.") == (stage == 1)) {
        file.tensors.push_back({tensor.name, DType::f32, tensor.shape, tensor.values.data()});
      }
    }
    write_checkpoint_file(dir.path(), file);
  }
  CHECK(has_scaling(dir.path()));
  Engine other(*device, test::small_llama("te-delayed"));
  load_scaling(dir.path(), other.model().scaling());
  const std::vector<ScalingState::SavedTensor> loaded = other.model().scaling().save();
  CHECK(std::ranges::equal(loaded, saved, {}, &ScalingState::SavedTensor::values,
                           &ScalingState::SavedTensor::values));
  fs::remove(dir / "scaling-00002-of-00002.safetensors");
  CHECK_THROWS_WITH(load_scaling(dir.path(), other.model().scaling()),
                    Contains("has no scaling.layers.1."));
}

TEST_CASE("a file of one writer that is cut off or missing is named") {
  const ModelConfig config = model("llama");
  const Layout& layout = kLayouts[4];
  const test::TempDir dir;
  const bool is_cut = GENERATE(true, false);
  const auto damage = [&](const fs::path& file) {
    if (is_cut) {
      fs::resize_file(file, fs::file_size(file) / 2);
    } else {
      fs::remove(file);
    }
  };
  SECTION("while parts are joined") {
    std::vector<StateCopy> copies;
    write(dir.path(), config, layout, copies);
    const fs::path partial = partial_checkpoint(dir.path(), 1);
    damage(partial / "weights-00006-of-00008.safetensors");
    CHECK_THROWS_WITH(write_model_files(partial, copies[1]),
                      Contains("weights-00006-of-00008.safetensors"));
    CHECK(find_checkpoints(dir.path()).empty());
  }
  SECTION("in a checkpoint") {
    const fs::path folder = save(dir.path(), config, layout);
    const std::string prefix = GENERATE("optimizer-5", "model-00002-of-");
    std::string name;
    for (const FileRecord& record : verify_checkpoint(folder).files) {
      name = record.name.starts_with(prefix) ? record.name : name;
    }
    damage(folder / name);
    CHECK_THROWS_WITH(verify_checkpoint(folder, Verify::sizes), Contains(name));
  }
}

TEST_CASE("a rank copies its share of the weights, and of parts its own") {
  const ModelConfig config = model("llama");
  size_t values = 0;
  for (const Layout& layout : kLayouts) {
    CAPTURE(layout.name);
    size_t all = 0;
    size_t most = 0;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      RankState state(config, layout, rank);
      WeightsCopy copy = {.max_file_bytes = kMaxFile};
      copy_weights(state.device(), state.store, config, state.mesh, copy);
      size_t own = 0;
      for (const HostMemory& memory : copy.memory) {
        own += memory.bytes();
      }
      all += own;
      most = std::max(most, own);
      values = std::max(values, layout.ranks() == 1 ? own : 0);
    }
    const auto ranks = static_cast<size_t>(layout.ranks());
    CHECK(most <= values);
    CHECK((layout.stage == 0 || layout.tensor * layout.pipeline > 1 ||
           most <= values / ranks * 5 / 4));
    CHECK((layout.stage == 0 || all <= values * 101 / 100));
  }
}

TEST_CASE("parts of a tensor are refused where elements with one scale lie in two of them") {
  HostStored moment(parse_format("e4m3 group(128) current"), 32 * 64);
  const Sharding whole = whole_of({32, 256}, 0);
  const StateTensor entry = {"moment1.w", moment.tensor, columns_of(whole, 1, 4), 0, false, true};
  CHECK_THROWS_WITH(saved_tensors({entry}),
                    Contains("parallelism.tensor cuts moment1.w where 128"));
}
