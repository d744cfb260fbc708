// Updates of parts of parameters: stochastic rounding draws what it draws for the whole.

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>

#include "ops/storage/storage_math.h"
#include "optim/optimizer.h"
#include "optim/registry.h"

using namespace fp8train;

namespace {

TensorFormat stochastic(DType dtype) {
  TensorFormat format = plain(dtype);
  format.rounding = Rounding::stochastic;
  if (dtype == DType::e4m3) {
    format.policy = ScalePolicy::current;
    format.block = kStoredBlock;
  }
  return format;
}

/// A parameter, whole or a part of one, and what AdamW stores for it.
struct Updated {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  Parameter* parameter;
  std::unique_ptr<Optimizer> optimizer;
  Arena scratch{*device, MemoryCategory::workspace};

  Updated(const Sharding& sharding, const ParameterFormats& formats)
      : parameter(store.add({.name = "w",
                             .shape = sharding.shape(),
                             .sharding = sharding,
                             .init_std = 0.02F,
                             .formats = formats})) {
    store.allocate(*device);
    store.initialize(*device, 3);
    OptimizerSettings settings;
    settings.grad_clip = 0.0;
    optimizer = make_optimizer(
        {.device = device.get(), .parameters = &store, .settings = settings, .seed = 11});
    optimizer->set_learning_rate(1e-3);
    scratch.reserve(1 << 16);
  }
  /// The gradient of an element depends on where it is in the whole.
  void step(int number) {
    for (int64_t i = 0; i < parameter->shape.count(); ++i) {
      const auto element = static_cast<double>(parameter->sharding.element(i) + 1);
      parameter->gradient.as<float>()[i] = static_cast<float>(std::sin(element * number));
    }
    optimizer->step(device->stream(), scratch);
  }
  std::vector<Encoded> tensors() const {
    return {parameter->stored_value, optimizer->state("moment1", 0),
            optimizer->state("moment2", 0)};
  }
};

/// The elements of a part whose codes are not those of the whole after some steps.
int different_codes(const Sharding& part, const ParameterFormats& formats) {
  Updated whole(whole_of(part.whole, part.index), formats);
  Updated updated(part, formats);
  for (int number = 1; number <= 3; ++number) {
    whole.step(number);
    updated.step(number);
  }
  int different = 0;
  for (size_t tensor = 0; tensor < 3; ++tensor) {
    const View expected = whole.tensors()[tensor].codes;
    const View found = updated.tensors()[tensor].codes;
    const size_t bytes = size_of(found.dtype);
    for (int64_t i = 0; i < part.shape().count(); ++i) {
      const auto element = static_cast<size_t>(part.element(i));
      different += std::memcmp(found.as<std::byte>() + static_cast<size_t>(i) * bytes,
                               expected.as<std::byte>() + element * bytes, bytes) == 0
                       ? 0
                       : 1;
    }
  }
  return different;
}

}  // namespace

TEST_CASE("stochastic rounding of a part draws the bits of the whole") {
  ParameterFormats formats;
  formats.value = formats.moment1 = formats.moment2 = stochastic(DType::bf16);
  const std::vector<int64_t> qkv = {96, 32, 32};
  for (const int ranks : {1, 2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(ranks, rank);
      CHECK(different_codes(rows_of_pieces(whole_of({160, 6}, 7), qkv, rank, ranks), formats) == 0);
      CHECK(different_codes(rows_of_pieces(whole_of({160}, 8), qkv, rank, ranks), formats) == 0);
      CHECK(different_codes(columns_of(whole_of({5, 32}, 9), rank, ranks), formats) == 0);
    }
  }
}

TEST_CASE("parts of whole groups have the scales and the codes of the whole") {
  ParameterFormats formats;
  formats.value = stochastic(DType::bf16);
  formats.moment1 = formats.moment2 = stochastic(DType::e4m3);
  const std::vector<int64_t> pieces = {16, 8};
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(different_codes(rows_of_pieces(whole_of({24, 128}, 7), pieces, rank, 4), formats) == 0);
    CHECK(different_codes(columns_of(whole_of({6, 512}, 9), rank, 4), formats) == 0);
  }
}

TEST_CASE("a range of a part draws from its first element on") {
  const std::vector<int64_t> pieces = {64, 32};
  for (const Sharding& part : {rows_of_pieces(whole_of({96, 6}, 7), pieces, 1, 16),
                               columns_of(whole_of({64, 24}, 7), 1, 3)}) {
    CAPTURE(part.columns);
    const ops::RoundingDraw draw =
        ops::rounding_draw({.seed = 2, .tensor = 7, .first = 8, .elements = part.elements()},
                           RoundingRole::moment1, 5);
    for (int64_t i = 0; i < part.shape().count() - 8; ++i) {
      const auto element = static_cast<uint64_t>(part.element(8 + i));
      REQUIRE(draw.block(i / 4).word[i % 4] == stochastic_bits(2, 5, 7 * 4 + 1, element));
    }
  }
}

TEST_CASE("a part of rows that are no multiples of four is not rounded stochastically") {
  ParameterFormats formats;
  const Sharding part = columns_of(whole_of({64, 27}, 7), 1, 3);
  CHECK_NOTHROW(Updated(part, formats));
  formats.moment1 = stochastic(DType::bf16);
  CHECK_THROWS_WITH(Updated(part, formats),
                    "w: stochastic rounding needs parts whose rows and runs of rows begin at a "
                    "multiple of 4 elements, which those of ranks do not; take fewer ranks or "
                    "round to nearest");
}
