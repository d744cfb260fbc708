// The initial values of parameters, whole and in the parts that ranks of several layouts store.

#include "nn/parameter.h"

#include <catch2/catch.hpp>

#include "support/parameters.h"

using namespace fp8train;

namespace {

constexpr uint64_t kSeed = 5;
constexpr int kRanks = 8;

/// How the weights of a layout are cut.
enum class Cuts : uint8_t { rows, columns, alternating };

struct Layout {
  int pipeline = 1, data = 1, context = 1, tensor = 1;
  Cuts cuts = Cuts::rows;
};

std::vector<Layout> layouts() {
  std::vector<Layout> found;
  for (const int pipeline : {1, 2, 4, 8}) {
    for (const int data : {1, 2, 4, 8}) {
      for (const int context : {1, 2, 4, 8}) {
        for (const Cuts cuts : {Cuts::rows, Cuts::columns, Cuts::alternating}) {
          const int others = pipeline * data * context;
          if (others <= kRanks && (others < kRanks || cuts == Cuts::rows)) {
            found.push_back({pipeline, data, context, kRanks / others, cuts});
          }
        }
      }
    }
  }
  return found;
}

/// The parameters of a small model, with sizes that are no multiples of four in a part.
std::vector<Parameter> model() {
  std::vector<Parameter> all = {
      {.name = "embedding", .shape = {56, 24}, .used_rows = 50, .init_std = 0.02F}};
  for (int i = 0; i < 8; ++i) {
    const std::string name = std::to_string(i);
    all.push_back({.name = name + ".norm", .shape = {24}, .init = Init::ones});
    all.push_back(
        {.name = name + ".qkv", .shape = {56, 24}, .matrices = {40, 8, 8}, .init_std = 0.02F});
    all.push_back({.name = name + ".bias", .shape = {56}, .matrices = {56}, .init_std = 0.01F});
    all.push_back(
        {.name = name + ".output", .shape = {24, 40}, .matrices = {24}, .init_std = 0.1F});
  }
  return all;
}

/// The part of parameter `index` that a rank of the layout stores.
Sharding part_of(const Parameter& parameter, size_t index, const Layout& layout, int rank) {
  const Sharding whole = whole_of(parameter.shape, index);
  const bool is_vector = parameter.shape.rank() == 1;
  const bool by_columns = layout.cuts == Cuts::columns ||
                          (layout.cuts == Cuts::alternating && parameter.matrices.size() == 1);
  if (parameter.init == Init::ones || (is_vector && by_columns)) {
    return whole;
  }
  const int tensor_rank = rank % layout.tensor;
  const std::vector<int64_t> rows =
      parameter.matrices.empty() ? std::vector<int64_t>{parameter.shape[0]} : parameter.matrices;
  return by_columns ? columns_of(whole, tensor_rank, layout.tensor)
                    : rows_of_pieces(whole, rows, tensor_rank, layout.tensor);
}

}  // namespace

TEST_CASE("in every layout of eight ranks the initial values are those of one rank, cut") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  const std::vector<Parameter> all = model();
  ParameterStore one;
  for (const Parameter& parameter : all) {
    one.add(parameter);
  }
  one.allocate(*device, false);
  one.initialize(*device, kSeed);
  REQUIRE(layouts().size() >= 24);
  size_t different = 0;
  for (const Layout& layout : layouts()) {
    for (int rank = 0; rank < kRanks; ++rank) {
      // A stage has some of the layers only.
      const auto stage = static_cast<size_t>(rank / (kRanks / layout.pipeline));
      const size_t layers = all.size() / static_cast<size_t>(layout.pipeline);
      ParameterStore store;
      for (size_t i = stage * layers; i < (stage + 1) * layers; ++i) {
        Parameter parameter = all[i];
        parameter.sharding = part_of(parameter, i, layout, rank);
        parameter.shape = parameter.sharding.shape();
        store.add(parameter);
      }
      store.allocate(*device, false);
      store.initialize(*device, kSeed);
      for (const auto& parameter : store.all()) {
        const Sharding& part = parameter->sharding;
        const float* const whole = one.all()[part.index]->value.as<float>();
        const float* const local = parameter->value.as<float>();
        for (int64_t i = 0; i < parameter->shape.count(); ++i) {
          different += local[i] == whole[part.element(i)] ? 0 : 1;
        }
      }
    }
  }
  CHECK(different == 0);
}

TEST_CASE("padded rows of a part are zero, and a parameter alone has its position for its index") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  const Parameter embedding = {
      .name = "embedding", .shape = {8, 3}, .used_rows = 5, .init = Init::ones};
  CHECK(store.add(embedding)->sharding == whole_of({8, 3}, 0));
  Parameter half = embedding;
  const std::vector<int64_t> rows = {8};
  half.sharding = rows_of_pieces(whole_of({8, 3}, 0), rows, 1, 2);
  half.shape = half.sharding.shape();
  const Parameter* const added = store.add(half);
  store.allocate(*device, false);
  store.initialize(*device, kSeed);
  const std::vector<float> values = test::value_on_host(*device, *added);
  CHECK(values == std::vector<float>{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0});
}
