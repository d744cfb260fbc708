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

/// The new scales of tensors that have one scale; 1 for others.
struct TensorScales {
  float weight = 1.0F, first = 1.0F, second = 1.0F;
};

FP8TRAIN_HD float new_tensor_scale(const Encoded& tensor, uint32_t largest) {
  return has_tensor_scale(tensor) ? new_scale(tensor, largest, *tensor.scales.as<float>()) : 1.0F;
}
FP8TRAIN_HD void keep_tensor_scale(const Encoded& tensor, float scale) {
  if (has_tensor_scale(tensor)) {
    *tensor.scales.as<float>() = scale;
  }
}

/// The largest new magnitudes of the three tensors, as bits.
struct TensorAmaxBits {
  uint32_t weight = 0, first = 0, second = 0;
};

FP8TRAIN_HD bool has_tensor_scales(const AdamW& call) {
  return has_tensor_scale(call.weight) || has_tensor_scale(call.moment1) ||
         has_tensor_scale(call.moment2);
}

/// Finds the largest new magnitudes in a pass that stores nothing. Maxima are integers: no order of
/// threads changes them.
FP8TRAIN_HD TensorAmaxBits find_tensor_amax_bits(const AdamW& call, const AdamWFactors& factors) {
  const bool of_weight = has_tensor_scale(call.weight);
  const int64_t count = call.weight.count();
  const int64_t pieces = ceil_div(count, kStoredPiece);
  uint32_t largest = 0;
  uint32_t largest1 = 0;
  uint32_t largest2 = 0;
#pragma omp parallel for schedule(static) \
    reduction(max                         \
              : largest, largest1, largest2) if (count >= kParallelElements)
  for (int64_t index = 0; index < pieces; ++index) {
    const int64_t begin = index * kStoredPiece;
    const int64_t length = minimum(kStoredPiece, count - begin);
    UpdatePiece piece;  // NOLINT(cppcoreguidelines-pro-type-member-init): update() fills it
    float* const weights = of_weight ? piece.weights(call.weight, begin, length) : nullptr;
    piece.update(call, factors, begin, length, weights);
    const uint32_t here = of_weight ? largest_magnitude(weights, length) : 0;
    const uint32_t here1 = largest_magnitude(piece.first, length);
    const uint32_t here2 = largest_magnitude(piece.second, length);
    largest = here > largest ? here : largest;
    largest1 = here1 > largest1 ? here1 : largest1;
    largest2 = here2 > largest2 ? here2 : largest2;
  }
  return {largest, largest1, largest2};
}

/// Raises the amax in the slot next to a tensor's scale.
FP8TRAIN_HD void raise_tensor_amax(const Encoded& tensor, uint32_t amax_bits) {
  if (has_tensor_scale(tensor)) {
    float& amax = tensor.scales.as<float>()[1];
    amax = amax_bits > bits_of(amax) ? float_of(amax_bits) : amax;
  }
}
/// Takes that amax, as bits, and resets it.
FP8TRAIN_HD uint32_t take_tensor_amax(const Encoded& tensor) {
  if (!has_tensor_scale(tensor)) {
    return 0;
  }
  float& amax = tensor.scales.as<float>()[1];
  const uint32_t amax_bits = bits_of(amax);
  amax = 0.0F;
  return amax_bits;
}

/// The scales that follow from the amax of the new values.
FP8TRAIN_HD TensorScales find_tensor_scales(const AdamW& call, const AdamWFactors& factors) {
  if (!has_tensor_scales(call)) {
    return {};
  }
  const TensorAmaxBits all_amax_bits =
      call.amax_known
          ? TensorAmaxBits{take_tensor_amax(call.weight), take_tensor_amax(call.moment1),
                           take_tensor_amax(call.moment2)}
          : find_tensor_amax_bits(call, factors);
  return {new_tensor_scale(call.weight, all_amax_bits.weight),
          new_tensor_scale(call.moment1, all_amax_bits.first),
          new_tensor_scale(call.moment2, all_amax_bits.second)};
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
               .tensor_scale = scales.first,
               .present = present,
               .draw = draw(RoundingRole::moment1)});
    store_run(call.moment2, begin, length,
              {.values = piece.second,
               .tensor_scale = scales.second,
               .floored = floors ? present : kNoneFloored,
               .draw = draw(RoundingRole::moment2)});
    if (!is_fp32(call.weight)) {
      store_run(
          call.weight, begin, length,
          {.values = weights, .tensor_scale = scales.weight, .draw = draw(RoundingRole::weight)});
      if (!call.copy.empty()) {
        load_run(call.weight, begin, length, scales.weight, weights);
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
  if (control->skip != 0 || !has_tensor_scales(call)) {
    return;
  }
  const TensorAmaxBits all_amax_bits =
      find_tensor_amax_bits(call, adamw_factors(rates_of(call), *control));
  raise_tensor_amax(call.weight, all_amax_bits.weight);
  raise_tensor_amax(call.moment1, all_amax_bits.first);
  raise_tensor_amax(call.moment2, all_amax_bits.second);
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
    if (!skip) {
      keep_tensor_scale(call.weight, scales.weight);
      keep_tensor_scale(call.moment1, scales.first);
      keep_tensor_scale(call.moment2, scales.second);
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
