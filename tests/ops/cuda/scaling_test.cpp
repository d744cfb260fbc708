// The upkeep of scales: exact.

#include "ops/cast/quantize.h"

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "numeric/bits.h"
#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"

namespace fp8train::test {
namespace {

TEST_CASE("compute_current_scale is exact", "[cuda][quantize]") {
  for (const DType code_type : ByteCodes::kTypes) {
    for (const ScaleType scale_type : {ScaleType::f32, ScaleType::pow2}) {
      for (const float amax : {0.0F, 1e-44F, 1e-38F, 0.3F, 448.0F, 3e38F, INFINITY, NAN}) {
        const auto run = [&](Side& side) {
          TensorFormat format = plain(code_type);
          format.scale_type = scale_type;
          auto* scales = side.put_value(std::array<float, 2>{});
          ops::compute_current_scale(side.stream(), side.put_value(amax), format, &(*scales)[0],
                                     &(*scales)[1]);
          return side.get_value(scales);
        };
        CHECK(on_cuda(run) == on_cpu(run));
      }
    }
  }
}

TEST_CASE("delayed scaling moves its state exactly", "[cuda][quantize][small]") {
  const bool per_step = GENERATE(false, true);
  for (const int64_t slots : {1, 31, 33, 100}) {
    for (const int64_t length : {1, 2, 5, 70}) {
      for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::max, AmaxAlgorithm::most_recent}) {
        const auto run = [&](Side& side) {
          const Array ones(DType::f32, {slots}, std::vector<float>(slots, 1.0F));
          const View history = side.put(Array(DType::f32, {length, slots}));
          const View cursor = side.put(Array(DType::i32, {slots}));
          const View scale = side.put(ones);
          const View scale_inv = side.put(ones);
          const View amax = side.put(ones);
          const View updates_left = side.put(Array(DType::i32, {slots}));
          const Array maxima(DType::f32, {slots}, std::vector<float>(slots, 448.0F));
          const ops::DelayedScalingState state = {.slots = slots,
                                                  .history_length = length,
                                                  .amax = amax.as<float>(),
                                                  .history = history.as<float>(),
                                                  .cursor = cursor.as<int32_t>(),
                                                  .scale = scale.as<float>(),
                                                  .scale_inv = scale_inv.as<float>(),
                                                  .format_max = side.put(maxima).as<float>(),
                                                  .pow2 = per_step,
                                                  .per_step = per_step,
                                                  .updates_left = updates_left.as<int32_t>()};
          Bits bits;
          for (uint32_t step = 0; step < 7; ++step) {
            std::vector<float> values =
                random_values(slots, step, 100.0F / static_cast<float>(step + 1));
            for (float& value : values) {
              value = std::abs(value);
            }
            const float special[] = {0.0F, INFINITY, NAN, 1e-42F};
            values[step * 5 % values.size()] = special[step % 4];
            const Array given(DType::f32, {slots}, values);
            side.device().copy_from_host(amax.data, given.bytes().data(), given.bytes().size());
            ops::update_delayed_scaling(
                side.stream(), state,
                {.margin = 1, .history_length = static_cast<int>(length), .algorithm = algorithm});
            for (const View& view : {history, cursor, scale, scale_inv, amax, updates_left}) {
              bits.add(side.get(view));
            }
          }
          return bits;
        };
        INFO(slots << " slots, " << length << (per_step ? ", per step" : ""));
        CHECK(on_cuda(run) == on_cpu(run));
      }
    }
  }
}

TEST_CASE("an amax that is not finite turns the accumulator into NaN", "[cuda][quantize]") {
  for (const int64_t count : {1, 300}) {
    for (const float last : {1.0F, INFINITY, NAN}) {
      std::vector<float> values(static_cast<size_t>(count), 2.0F);
      values.back() = last;
      const double after = on_cuda([&](Side& side) {
        double* accumulator = side.put_value(1.5);
        ops::propagate_non_finite(side.stream(), side.put(Array(DType::f32, {count}, values)),
                                  accumulator);
        return side.get_value(accumulator);
      });
      CHECK((last == 1.0F ? after == 1.5 : std::isnan(after)));
    }
  }
}

}  // namespace
}  // namespace fp8train::test
