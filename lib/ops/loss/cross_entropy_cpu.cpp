// Compiled once per CPU level. One thread works on a row. A row is taken in blocks of
// kSumBlock; 64 partial sums per block in fp32, the blocks in fp64: the same bits for any number of
// threads. The exponential uses fused multiply-adds where the level has them, so that bits differ
// between x86-64 and all other levels.

#include "numeric/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/loss/cross_entropy_math.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kSumBlock = 512;  // a multiple of kRowLanes
/// Partial results of a row: element i goes to lane i % 64. More lanes than the compiler unrolls,
/// so that it vectorizes a loop over them.
constexpr int64_t kRowLanes = 64;

/// a b + c.
FP8TRAIN_HD float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// e^x for x <= 0, to 1 ulp; 0 below -87, where a probability no longer matters. Exactly 1 at 0;
/// NaN stays. As exp_f32() does it, with half of its instructions.
FP8TRAIN_HD float exp_below_zero(float x) {
  const float limited = x < -87.0F ? 0.0F : x;
  const float shifted = multiply_add(limited, 1.44269502F, detail::kRounder);
  const float n = shifted - detail::kRounder;
  const float r = multiply_add(n, -detail::kLn2Low, multiply_add(n, -detail::kLn2High, limited));
  float c = multiply_add(1.38207339e-3F, r, 8.36867746e-3F);
  c = multiply_add(c, r, 4.16682661e-2F);
  c = multiply_add(c, r, 1.66665211e-1F);
  c = multiply_add(c, r, 4.9999994e-1F);
  const float p = 1.0F + multiply_add(r * r, c, r);
  const float result = float_of(bits_of(p) + (bits_of(shifted) << 23));
  return x >= -87.0F ? result : limited;
}

/// The largest of a row; NaN is passed over.
template <typename X>
FP8TRAIN_HD float row_maximum(const X* x, int64_t count) {
  float lanes[kRowLanes];
  for (float& lane : lanes) {
    lane = -float_of(0x7F800000U);
  }
  const int64_t whole = count / kRowLanes * kRowLanes;
  for (int64_t begin = 0; begin < whole; begin += kRowLanes) {
    for (int64_t lane = 0; lane < kRowLanes; ++lane) {
      const float value = load_as_float(x + begin + lane);
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  }
  for (int64_t i = whole; i < count; ++i) {
    const float value = load_as_float(x + i);
    lanes[0] = value > lanes[0] ? value : lanes[0];
  }
  float largest = lanes[0];
  for (int64_t lane = 1; lane < kRowLanes; ++lane) {
    largest = lanes[lane] > largest ? lanes[lane] : largest;
  }
  return largest;
}

/// Element i in partial sum i % 64, then a tree. `padded` is a multiple of 64.
FP8TRAIN_HD float sum_of_lanes(const float* block, int64_t padded) {
  float lanes[kRowLanes] = {};
  for (int64_t begin = 0; begin < padded; begin += kRowLanes) {
    for (int64_t lane = 0; lane < kRowLanes; ++lane) {
      lanes[lane] += block[begin + lane];
    }
  }
  for (int64_t width = kRowLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

/// Sum of e^(x - base). With `keep` (fp32 only) the exponentials replace x.
template <typename X>
FP8TRAIN_HD double sum_of_exponentials(X* x, int64_t count, float base, bool keep) {
  float block[kSumBlock];
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    const int64_t length = minimum(kSumBlock, count - begin);
    for (int64_t i = 0; i < length; ++i) {
      block[i] = exp_below_zero(load_as_float(x + begin + i) - base);
    }
    if constexpr (dtype_of<X>() == DType::f32) {
      if (keep) {
        __builtin_memcpy(x + begin, block, static_cast<size_t>(length) * sizeof(float));
      }
    }
    int64_t padded = length;
    while (padded % kRowLanes != 0) {
      block[padded++] = 0.0F;
    }
    sum += static_cast<double>(sum_of_lanes(block, padded));
  }
  return sum;
}

/// The statistics of `count` logits, of which `target` is one if it is in range.
template <typename X>
FP8TRAIN_HD LogitSum sum_of_logits(X* x, int64_t count, int64_t target, bool keep = false) {
  const float largest = row_maximum(x, count);
  const float at_target = target >= 0 && target < count ? load_as_float(x + target) : 0.0F;
  return {largest, static_cast<float>(sum_of_exponentials(x, count, base_of(largest), keep)),
          at_target};
}

template <typename X>
FP8TRAIN_HD void zero_row(X* x, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; ++c) {
    store_from_float(x + c, 0.0F);
  }
}

/// Returns the cross entropy of a row, sets its z-loss, and writes the gradient of their sum if
/// asked. With p = softmax(x), l = log sum exp and loss = l - x[t] + z l^2:
/// d loss / d x[c] = p[c] (1 + 2 z l) - (c == t), all times the gradient scale.
template <typename X>
FP8TRAIN_HD float cross_entropy_row(X* x, int64_t row, const CrossEntropy& call, float& z_term) {
  const int64_t columns = call.logits.shape.back();
  const int32_t target = call.targets.as<int32_t>()[row];
  z_term = 0.0F;
  if (target < 0) {
    if (call.write_gradient) {
      zero_row(x, 0, columns);
    }
    return 0.0F;
  }
  if (target >= call.vocabulary) {
    return float_of(0x7FC00000U);
  }
  const int64_t used = used_columns(call.vocabulary, call.first_column, columns);
  const int64_t own_target = target - call.first_column;
  const bool whole = call.statistics.empty();
  const bool keeps = dtype_of<X>() == DType::f32 && whole && call.write_gradient;
  const LogitSum sum = whole
                           ? of_whole_row(sum_of_logits(x, used, own_target, keeps))
                           : parts_of_rows(call.statistics, call.logits.shape.rows()).combined(row);
  const float target_shifted = sum.target - sum.largest;
  const float log_sum = log_f32(sum.sum);
  const float log_sum_exp = sum.largest + log_sum;
  // Without z-loss its square must not matter: it may overflow.
  z_term = call.z_loss == 0.0F ? 0.0F : call.z_loss * (log_sum_exp * log_sum_exp);
  const float loss = log_sum - target_shifted;
  if (!call.write_gradient) {
    return loss;
  }
  const float scale = (call.gradient_scale == nullptr ? 1.0F : *call.gradient_scale) *
                      (call.target_share == nullptr ? call.gradient_factor : *call.target_share);
  const float z_slope = 2.0F * call.z_loss * log_sum_exp;
  const float inverse = 1.0F / sum.sum;
  const float factor = inverse * (1.0F + z_slope) * scale;
  if (keeps) {
    for (int64_t c = 0; c < used; ++c) {
      store_from_float(x + c, load_as_float(x + c) * factor);
    }
  } else {
    for (int64_t c = 0; c < used; ++c) {
      store_from_float(x + c, exp_below_zero(load_as_float(x + c) - sum.largest) * factor);
    }
  }
  if (own_target >= 0 && own_target < used) {
    const float p = exp_below_zero(target_shifted) * inverse;
    store_from_float(x + own_target, ((p - 1.0F) + p * z_slope) * scale);
  }
  zero_row(x, used, columns);
  return loss;
}

}  // namespace

void vocabulary_statistics(Stream /*stream*/, const VocabularyStatistics& call) {
  const int64_t columns = call.logits.shape.back();
  const int64_t rows = call.logits.shape.rows();
  const int64_t width = call.logits.count() * kStatistics / call.statistics.count();
  const int32_t* targets = call.targets.as<int32_t>();
  auto* const statistics = call.statistics.as<LogitSum>();
  with_float_type(call.logits.dtype, [&]<typename X>(TypeTag<X>) {
    X* const logits = const_cast<X*>(call.logits.as<X>());  // they stay as they are
#pragma omp parallel for schedule(dynamic, 4) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      const bool is_target = targets[row] >= 0 && targets[row] < call.vocabulary;
      for (int64_t begin = 0; begin < columns; begin += width) {
        const int64_t first = call.first_column + begin;
        statistics[begin / width * rows + row] =
            is_target
                ? sum_of_logits(logits + row * columns + begin,
                                used_columns(call.vocabulary, first, width), targets[row] - first)
                : no_logits();
      }
    }
  });
}

void cross_entropy(Stream /*stream*/, const CrossEntropy& call) {
  const int64_t columns = call.logits.shape.back();
  const int64_t rows = call.logits.shape.rows();
  float* losses = call.losses.as<float>();
  float* z_losses = call.z_losses.as<float>();
  with_float_type(call.logits.dtype, [&](auto tag) {
    auto* logits = call.logits.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(dynamic, 4) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      float unused = 0.0F;
      losses[row] =
          cross_entropy_row(logits + row * columns, row, call, z_losses ? z_losses[row] : unused);
    }
  });
}

void accumulate_loss(Stream /*stream*/, ConstView losses, ConstView targets, double* accumulator,
                     int64_t* count) {
  const float* loss = losses.as<float>();
  const int32_t* target = targets.as<int32_t>();
  double sum = 0.0;
  int64_t counted = 0;
  for (int64_t row = 0; row < losses.count(); ++row) {
    sum += static_cast<double>(loss[row]);
    counted += target[row] >= 0 ? 1 : 0;
  }
  *accumulator += sum;
  if (count != nullptr) {
    *count += counted;
  }
}

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
