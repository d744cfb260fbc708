// Compiled once per CPU level. The arithmetic is in ops/optimizer/optimizer_math.h.

#include "base/math.h"
#include "ops/cast/quantize_sink_cpu.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/dispatch/op_table.h"
#include "ops/optimizer/optimizer_math.h"
#include "ops/storage/storage_math.h"
#include "ops/storage/stored_runs_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kSumLanes = 256;  // of a sum of sums: part of the definition of sum_of_squares

/// body(read) with read(x) the value of an fp32 x as `read_as` has it.
template <typename Body>
FP8TRAIN_HD void with_read_as(DType read_as, Body body) {
  if (read_as == DType::bf16) {
    body([](const float* x) { return as_stored<bf16>(*x); });
  } else {
    body([](const float* x) { return *x; });
  }
}

/// Sixteen fp64 sums, element i in lane i % 16, then a tree. A square of an fp32 number is exact
/// in fp64.
template <typename X, typename Read>
FP8TRAIN_HD double chunk_sum_of_squares(const X* x, int64_t count, Read read) {
  double lanes[kLanes] = {};
  float rest[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = whole; i < count; ++i) {
    rest[i - whole] = read(x + i);
  }
  for (int64_t begin = 0; begin < whole; begin += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<double>(read(x + begin + lane));
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    lanes[lane] += static_cast<double>(rest[lane]) * static_cast<double>(rest[lane]);
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

/// Sum of count values that lie `stride` apart: lane i % 256 adds value i in order, then the lanes
/// are folded in halves.
FP8TRAIN_HD double sum_of_sums(const double* sums, int64_t count, int64_t stride) {
  double lanes[kSumLanes] = {};
  for (int64_t i = 0; i < count; ++i) {
    lanes[i % kSumLanes] += sums[i * stride];
  }
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

/// partial[chunk] = the sum of squares of each chunk, over the threads.
template <typename X, typename Read>
void sum_chunks(const X* x, int64_t count, double* partial, Read read) {
  const int64_t chunks = squares_partial_sums(count);
#pragma omp parallel for schedule(static) if (count >= kParallelElements)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * kSquaresChunk;
    partial[chunk] = chunk_sum_of_squares(x + begin, minimum(kSquaresChunk, count - begin), read);
  }
}

/// The low-precision copy of `length` new weights, which belong at `begin`; none when `copy` is
/// empty.
FP8TRAIN_HD void write_copy(const float* weight, const View& copy, int64_t begin, int64_t length) {
  if (copy.empty()) {
    return;
  }
  with_float_type(copy.dtype, [&](auto tag) {
    auto* to = copy.as<typename decltype(tag)::Type>() + begin;
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) {
      store_from_float(to + i, weight[i]);
    }
  });
}

FP8TRAIN_HD bool is_fp32(const Encoded& tensor) {
  return tensor.format.dtype == DType::f32;
}

/// A piece of the four tensors as fp32, decoded where they are not.
struct UpdatePiece {
  float weight[kStoredPiece];
  float gradient[kStoredPiece];
  float first[kStoredPiece];
  float second[kStoredPiece];

  /// The weights where they lie, or decoded.
  FP8TRAIN_HD float* weights(const Encoded& tensor, int64_t begin, int64_t length) {
    if (is_fp32(tensor)) {
      return tensor.codes.as<float>() + begin;
    }
    load_run(tensor, begin, length, weight);
    return weight;
  }
  /// The gradients where they lie, or decoded, or as `read_as` has them.
  FP8TRAIN_HD const float* gradients(const Encoded& tensor, DType read_as, int64_t begin,
                                     int64_t length) {
    if (!is_fp32(tensor)) {
      load_run(tensor, begin, length, gradient);
      return gradient;
    }
    const float* from = tensor.codes.as<float>() + begin;
    if (read_as != DType::bf16) {
      return from;
    }
    with_read_as(read_as, [&](auto read) {
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) {
        gradient[i] = read(from + i);
      }
    });
    return gradient;
  }
  /// New moments, and new weights if `weights` is not null.
  FP8TRAIN_HD void update(const AdamW& call, const AdamWFactors& factors, int64_t begin,
                          int64_t length, float* __restrict weights) {
    load_run(call.moment1, begin, length, first);
    load_run(call.moment2, begin, length, second);
    const float* gradient_of = gradients(call.gradient, call.gradient_read_as, begin, length);
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) {
      float value = weights == nullptr ? 0.0F : weights[i];
      adamw_element(factors, gradient_of[i], value, first[i], second[i]);
      if (weights != nullptr) {
        weights[i] = value;
      }
    }
  }
};

/// The tensors of a call that may have one scale: the weight and both moments.
struct ScaledTensors {
  const Encoded* of[3];

  FP8TRAIN_HD explicit ScaledTensors(const AdamW& call)
      : of{&call.weight, &call.moment1, &call.moment2} {}
  FP8TRAIN_HD bool has_scales() const {
    return has_tensor_scale(*of[0]) || has_tensor_scale(*of[1]) || has_tensor_scale(*of[2]);
  }
};

/// Their new scales; 1 for those that have none.
struct TensorScales {
  float of[3] = {1.0F, 1.0F, 1.0F};
};

/// Their largest new magnitudes, as bits.
struct TensorAmaxBits {
  uint32_t of[3] = {};
};

/// Finds the largest new magnitudes in a pass that stores nothing. Maxima are integers: no order of
/// threads changes them.
FP8TRAIN_HD TensorAmaxBits find_tensor_amax_bits(const AdamW& call, const AdamWFactors& factors) {
  const bool of_weight = has_tensor_scale(call.weight);
  const int64_t count = call.weight.count();
  const int64_t pieces = ceil_div(count, kStoredPiece);
  uint32_t largest[3] = {};
#pragma omp parallel for schedule(static) reduction(max \
                                                    : largest[:3]) if (count >= kParallelElements)
  for (int64_t index = 0; index < pieces; ++index) {
    const int64_t begin = index * kStoredPiece;
    const int64_t length = minimum(kStoredPiece, count - begin);
    UpdatePiece piece;  // NOLINT(cppcoreguidelines-pro-type-member-init): update() fills it
    float* const weights = of_weight ? piece.weights(call.weight, begin, length) : nullptr;
    piece.update(call, factors, begin, length, weights);
    const float* const values[] = {weights, piece.first, piece.second};
    for (int t = of_weight ? 0 : 1; t < 3; ++t) {
      const uint32_t here = largest_magnitude(values[t], length);
      largest[t] = here > largest[t] ? here : largest[t];
    }
  }
  return {{largest[0], largest[1], largest[2]}};
}

/// The scales that follow from the amax of the new values, which may lie next to the old scales: it
/// is reset there.
FP8TRAIN_HD TensorScales find_tensor_scales(const AdamW& call, const AdamWFactors& factors) {
  const ScaledTensors tensors(call);
  TensorScales scales;
  if (!tensors.has_scales()) {
    return scales;
  }
  const TensorAmaxBits found =
      call.amax_known ? TensorAmaxBits{} : find_tensor_amax_bits(call, factors);
  for (int t = 0; t < 3; ++t) {
    if (has_tensor_scale(*tensors.of[t])) {
      float* const stored = tensors.of[t]->scales.as<float>();
      const uint32_t largest = call.amax_known ? bits_of(stored[1]) : found.of[t];
      stored[1] = call.amax_known ? 0.0F : stored[1];
      scales.of[t] = new_scale(*tensors.of[t], largest, stored[0]);
    }
  }
  return scales;
}

/// Updates elements begin .. end - 1 of a call whose tensors are not all fp32.
static __attribute__((noinline)) void update_encoded(const AdamW& call, const AdamWFactors& factors,
                                                     const TensorScales& scales, int64_t step,
                                                     int64_t begin, int64_t end) {
  const auto draw = [&](RoundingRole role) { return rounding_draw(call.rounding, role, step); };
  const bool floors = !call.moment2.scales.empty();
  for (; begin < end; begin += kStoredPiece) {
    const int64_t length = minimum(kStoredPiece, end - begin);
    UpdatePiece piece;  // NOLINT(cppcoreguidelines-pro-type-member-init): update() fills it
    float* const weights = piece.weights(call.weight, begin, length);
    piece.update(call, factors, begin, length, weights);
    uint8_t present[kStoredPiece];
    store_run(call.moment1, begin, length,
              {.values = piece.first,
               .tensor_scale = scales.of[1],
               .present = present,
               .draw = draw(RoundingRole::moment1)});
    store_run(call.moment2, begin, length,
              {.values = piece.second,
               .tensor_scale = scales.of[2],
               .floored = floors ? present : kNoneFloored,
               .draw = draw(RoundingRole::moment2)});
    if (!is_fp32(call.weight)) {
      store_run(
          call.weight, begin, length,
          {.values = weights, .tensor_scale = scales.of[0], .draw = draw(RoundingRole::weight)});
      if (!call.copy.empty()) {
        load_run(call.weight, begin, length, scales.of[0], weights);
      }
    }
    write_copy(weights, call.copy, begin, length);
  }
}

/// Updates elements [begin, end) of a call whose tensors are all fp32.
FP8TRAIN_HD void update_plain(const AdamW& call, const AdamWFactors& factors, int64_t begin,
                              int64_t end) {
  float* weight = call.weight.codes.as<float>();
  float* moment1 = call.moment1.codes.as<float>();
  float* moment2 = call.moment2.codes.as<float>();
  const float* gradient = call.gradient.codes.as<float>();
  with_read_as(call.gradient_read_as, [&](auto read) {
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
      adamw_element(factors, read(gradient + i), weight[i], moment1[i], moment2[i]);
    }
  });
  write_copy(weight + begin, call.copy, begin, end - begin);
}

}  // namespace

void sum_of_squares(Stream /*stream*/, ConstView x, double* accumulator, View scratch,
                    DType read_as) {
  const int64_t count = x.count();
  const int64_t chunks = squares_partial_sums(count);
  double* partial = scratch.as<double>();
  if (x.dtype == DType::f32) {
    with_read_as(read_as, [&](auto read) { sum_chunks(x.as<float>(), count, partial, read); });
  } else {
    with_float_type(x.dtype, [&](auto tag) {
      const auto* data = x.as<typename decltype(tag)::Type>();
      sum_chunks(data, count, partial, [](const auto* value) { return load_as_float(value); });
    });
  }
  // The sum of a group replaces its first value.
  for (int64_t begin = 0; begin < chunks; begin += kSquaresGroup) {
    partial[begin] = sum_of_sums(partial + begin, minimum(kSquaresGroup, chunks - begin), 1);
  }
  *accumulator += sum_of_sums(partial, ceil_div(chunks, kSquaresGroup), kSquaresGroup);
}

void prepare_step(Stream /*stream*/, StepControl* control, float max_norm,
                  const LossScaling& scaling) {
  update_step_control(*control, max_norm, scaling);
}

void adamw_amax(Stream /*stream*/, const AdamW& call, const StepControl* control) {
  const ScaledTensors tensors(call);
  if (control->skip != 0 || !tensors.has_scales()) {
    return;
  }
  const TensorAmaxBits found = find_tensor_amax_bits(call, adamw_factors(rates_of(call), *control));
  for (int t = 0; t < 3; ++t) {
    if (has_tensor_scale(*tensors.of[t])) {
      float& amax = tensors.of[t]->scales.as<float>()[1];
      amax = found.of[t] > bits_of(amax) ? float_of(found.of[t]) : amax;
    }
  }
}

void adamw(Stream stream, const AdamW& call, const StepControl* control) {
  // A transpose is made from codes that are whole: after the update.
  const bool cast_later = !call.cast.out.columnwise.codes.empty();
  const QuantizeSink sink = cast_later ? QuantizeSink{} : call.cast;
  const bool skip = control->skip != 0;
  const bool plain = is_fp32(call.weight) && is_fp32(call.gradient) && is_fp32(call.moment1) &&
                     is_fp32(call.moment2);
  if (!skip || !sink.empty()) {
    const AdamWFactors factors = adamw_factors(rates_of(call), *control);
    const TensorScales scales = skip ? TensorScales{} : find_tensor_scales(call, factors);
    const int64_t count = call.weight.count();
    for_each_piece<float>(
        sink, ceil_div(count, kChunk), count, [&](int64_t chunk, CastCounts& counts) {
          const int64_t begin = chunk * kChunk;
          const int64_t end = minimum(count, begin + kChunk);
          if (!skip && plain) {
            update_plain(call, factors, begin, end);
          } else if (!skip) {
            update_encoded(call, factors, scales, control->applied_steps, begin, end);
          }
          if (!sink.empty()) {
            cast_piece(sink, call.weight.codes.as<float>() + begin, 0, begin, end - begin, counts);
          }
        });
    const ScaledTensors tensors(call);
    for (int t = 0; t < 3 && !skip; ++t) {
      if (has_tensor_scale(*tensors.of[t])) {
        *tensors.of[t]->scales.as<float>() = scales.of[t];
      }
    }
  }
  if (cast_later) {
    ops::op_table(stream).quantize(stream, call.weight.codes, call.cast.out, call.cast.amax,
                                   call.cast.statistics, CastOptions{});
  }
}

void sgd(Stream /*stream*/, const Sgd& call, const StepControl* control) {
  if (control->skip != 0) {
    return;
  }
  const SgdFactors factors = sgd_factors(call, *control);
  float* weight = call.weight.as<float>();
  float* momentum = call.momentum.as<float>();
  const float* gradient = call.gradient.as<float>();
  const View copy = call.copy;
  for_each_chunk(call.weight.count(), [=](int64_t begin, int64_t end) {
    if (momentum == nullptr) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        weight[i] = sgd_weight(factors, weight[i], gradient[i] * factors.gradient);
      }
    } else {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        momentum[i] = sgd_direction(factors, gradient[i], momentum[i]);
        weight[i] = sgd_weight(factors, weight[i], momentum[i]);
      }
    }
    write_copy(weight + begin, copy, begin, end - begin);
  });
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
