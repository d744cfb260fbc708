// Compiled once per CPU level. One thread works on a row. A row is taken in blocks of
// kSumBlock; 64 partial sums per block in fp32, the blocks in fp64: the same bits at every
// level and for any number of threads.

#include "numeric/math.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/support/kernel_support_cpu.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {
namespace {

constexpr int64_t kSumBlock = 512;  // a multiple of kRowLanes
/// Partial results of a row: element i goes to lane i % 64. More lanes than the compiler unrolls,
/// so that it vectorizes a loop over them.
constexpr int64_t kRowLanes = 64;

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

/// Sum of e^(x - maximum). With `keep` (fp32 only) the exponentials replace x.
template <typename X>
FP8TRAIN_HD double sum_of_exponentials(X* x, int64_t count, float maximum, bool keep) {
  float block[kSumBlock];
  double sum = 0.0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    const int64_t length = minimum(kSumBlock, count - begin);
    for (int64_t i = 0; i < length; ++i) {
      block[i] = exp_f32(load_as_float(x + begin + i) - maximum);
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
FP8TRAIN_HD float cross_entropy_row(X* x, int64_t columns, int64_t vocabulary, int32_t target,
                                    const CrossEntropy& call, float& z_term) {
  z_term = 0.0F;
  if (target < 0) {
    if (call.write_gradient) {
      zero_row(x, 0, columns);
    }
    return 0.0F;
  }
  if (target >= vocabulary) {
    return float_of(0x7FC00000U);
  }
  const float maximum = row_maximum(x, vocabulary);
  const float target_shifted = load_as_float(x + target) - maximum;
  const float sum =
      static_cast<float>(sum_of_exponentials(x, vocabulary, maximum, call.write_gradient));
  const float log_sum = log_f32(sum);
  const float log_sum_exp = maximum + log_sum;
  // Without z-loss its square must not matter: it may overflow.
  z_term = call.z_loss == 0.0F ? 0.0F : call.z_loss * (log_sum_exp * log_sum_exp);
  const float loss = log_sum - target_shifted;
  if (!call.write_gradient) {
    return loss;
  }
  const float scale = (call.gradient_scale == nullptr ? 1.0F : *call.gradient_scale) *
                      (call.target_share == nullptr ? call.gradient_factor : *call.target_share);
  const float z_slope = 2.0F * call.z_loss * log_sum_exp;
  const float inverse = 1.0F / sum;
  const float factor = inverse * (1.0F + z_slope) * scale;
  for (int64_t c = 0; c < vocabulary; ++c) {
    if constexpr (dtype_of<X>() == DType::f32) {
      x[c] *= factor;
    } else {
      store_from_float(x + c, exp_f32(load_as_float(x + c) - maximum) * factor);
    }
  }
  const float p = exp_f32(target_shifted) * inverse;
  store_from_float(x + target, ((p - 1.0F) + p * z_slope) * scale);
  zero_row(x, vocabulary, columns);
  return loss;
}

}  // namespace

void cross_entropy(Stream /*stream*/, const CrossEntropy& call) {
  const int64_t columns = call.logits.shape.back();
  const int64_t rows = call.logits.shape.rows();
  const int32_t* targets = call.targets.as<int32_t>();
  float* losses = call.losses.as<float>();
  float* z_losses = call.z_losses.as<float>();
  with_float_type(call.logits.dtype, [&](auto tag) {
    auto* logits = call.logits.as<typename decltype(tag)::Type>();
#pragma omp parallel for schedule(static) if (rows * columns >= kParallelElements)
    for (int64_t row = 0; row < rows; ++row) {
      float unused = 0.0F;
      losses[row] = cross_entropy_row(logits + row * columns, columns, call.vocabulary,
                                      targets[row], call, z_losses ? z_losses[row] : unused);
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
