// What norms and activation functions read of inputs that are stored as codes: against the flow of
// COAT (coat/activation/real_quantization: func_rmsnorm.py, silu_fwd.py, mul_fwd.py, mul_bwd.py,
// silu_bwd.py) and of DeepSeek-V3 (arXiv 2412.19437, section 3.3.3), written down in double
// precision. Linear layers of an MLP are identities in bf16, so that nothing else rounds.

#include <catch2/catch.hpp>
#include <cmath>

#include "base/philox.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "numeric/convert.h"

using namespace fp8train;

namespace {

constexpr int64_t kRows = 6;
constexpr int64_t kInner = 192;  // with 1x128 a block has the end of gate and the begin of up
constexpr int64_t kWidth = 2 * kInner;

using Values = std::vector<double>;

std::vector<float> random_values(int64_t count, uint64_t stream, float size) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform_from_bits(philox(stream, 0, static_cast<uint64_t>(i)).word[0]);
    values[static_cast<size_t>(i)] = size * (2.0F * value - 1.0F);
  }
  return values;
}

/// The nearest e4m3 number, found among all.
double nearest_e4m3(double value) {
  double best = 0.0;
  for (int bits = 0; bits < 0x7F; ++bits) {
    const double magnitude = decode(e4m3{static_cast<uint8_t>(bits)});
    const double distance = std::fabs(std::fabs(value) - magnitude);
    const double shortest = std::fabs(std::fabs(value) - best);
    if (distance < shortest || (distance == shortest && bits % 2 == 0)) {
      best = magnitude;
    }
  }
  return std::copysign(best, value);
}

double to_bf16(double value) {
  return decode(encode<bf16>(static_cast<float>(value)));
}

/// Codes of `count` values with one scale, read again. Groups of 16: the scale is bf16.
void read_as_codes(double* values, int64_t count, bool bf16_scale) {
  float amax = 0.0F;
  for (int64_t i = 0; i < count; ++i) {
    amax = std::max(amax, std::fabs(static_cast<float>(values[i])));
  }
  const float unit = bf16_scale ? static_cast<float>(to_bf16(amax / 448.0F)) : amax / 448.0F;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = amax == 0.0F ? 0.0 : nearest_e4m3(values[i] / unit) * unit;
  }
}

Values as_codes(Values values, int64_t row, int64_t block, bool rounded) {
  for (size_t begin = 0; begin < values.size(); begin += static_cast<size_t>(row)) {
    for (int64_t at = 0; at < row; at += block) {
      read_as_codes(values.data() + begin + at, std::min(block, row - at), block == 16);
    }
  }
  for (double& value : values) {
    value = rounded ? to_bf16(value) : value;
  }
  return values;
}

PrecisionPlan plan_with(const char* saved, bool forward, bool recompute) {
  PlanRequest request;
  request.plan = "custom";
  request.roles.master_weight = "none";
  request.roles.weight = "fp32";
  request.roles.saved_nonlinear = saved;
  request.forward_reads_saved = forward;
  request.recompute_swiglu = recompute;
  return resolve_plan(request);
}

struct Layer {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Parameter* up = store.add({.name = "up", .shape = {kWidth, kWidth}});
  Parameter* down;
  Parameter* scale = store.add({.name = "norm", .shape = {kWidth}});
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  std::unique_ptr<Mlp> mlp;
  std::unique_ptr<Norm> norm;
  Values x = to_values(random_values(kRows * kWidth, 1, 1.5F));
  Values dy = to_values(random_values(kRows * kWidth, 2, 1.0F));
  Values y, dx, down_gradient;
  size_t saved_bytes = 0;

  static Values to_values(const std::vector<float>& from) {
    Values values;
    for (const float value : from) {
      values.push_back(to_bf16(value));
    }
    return values;
  }

  explicit Layer(const PrecisionPlan& plan, MlpKind activation = MlpKind::swiglu) {
    const bool gated = activation == MlpKind::swiglu;
    const int64_t inner = gated ? kInner : kWidth;
    down = store.add({.name = "down", .shape = {kWidth, inner}});
    const std::vector<LinearPlan> plans = plan_linears(plan, {{"up", kWidth, kWidth, 0, false},
                                                              {.name = "down",
                                                               .in_features = inner,
                                                               .out_features = kWidth,
                                                               .block = 0,
                                                               .reads_swiglu = gated}});
    mlp = std::make_unique<Mlp>(activation, Linear(plans[0], up, nullptr, scaling),
                                Linear(plans[1], down, nullptr, scaling),
                                saved_format(plan, plan.saved_nonlinear));
    norm =
        std::make_unique<Norm>(scale, nullptr, false, 1e-5F, saved_format(plan, plan.saved_norm));
    store.allocate(*device);
    scaling.allocate(*device);
    mlp->for_each_linear([&](Linear& linear) { linear.weight().allocate(*device, store); });
    saved.reserve(4 << 20);
    scratch.reserve(8 << 20);
    std::vector<float> weight(kWidth * kWidth, 0.0F);
    for (int64_t i = 0; i < kWidth; ++i) {
      weight[static_cast<size_t>(i * kWidth + i)] = 1.0F;
    }
    set_value(*device, *up, weight.data());
    weight.assign(static_cast<size_t>(kWidth * inner), 0.0F);
    for (int64_t i = 0; i < inner; ++i) {
      weight[static_cast<size_t>(i * inner + i)] = 1.0F;
    }
    set_value(*device, *down, weight.data());
    set_value(*device, *scale, std::vector<float>(kWidth, 0.75F).data());
    mlp->for_each_linear([&](Linear& linear) {
      linear.weight().refresh(context(true), LinearWeight::Refresh::all);
    });
  }
  StepContext context(bool training) {
    return {.device = device.get(),
            .stream = device->stream(),
            .saved = &saved,
            .scratch = &scratch,
            .training = training};
  }
  View upload(const Values& values) {
    const View view = allocate(scratch, DType::bf16, {kRows, kWidth});
    for (size_t i = 0; i < values.size(); ++i) {
      view.as<bf16>()[i] = encode<bf16>(static_cast<float>(values[i]));
    }
    return view;
  }
  static Values download(const View& view) {
    Values values;
    for (int64_t i = 0; i < view.count(); ++i) {
      values.push_back(decode(view.as<bf16>()[i]));
    }
    return values;
  }
  void run_mlp(bool training) {
    ArenaScope stored(saved);
    ArenaScope scope(scratch);
    const View out = allocate(scratch, DType::bf16, {kRows, kWidth});
    const View gradient = allocate(scratch, DType::bf16, {kRows, kWidth});
    Mlp::Saved state;
    const InputTensor input = mlp->up().allocate_input(context(training), kRows);
    const View from = upload(x);
    std::copy_n(from.as<bf16>(), from.count(), input.plain.as<bf16>());
    mlp->forward(context(training), input, out, state);
    y = download(out);
    saved_bytes = saved.mark();
    if (training) {
      std::fill_n(down->gradient.as<float>(), down->shape.count(), 0.0F);
      mlp->backward(context(true), upload(dy), gradient, state);
      dx = download(gradient);
      const float* from_down = down->gradient.as<float>();
      down_gradient.assign(from_down, from_down + down->shape.count());
    }
  }
  void run_norm(bool training) {
    ArenaScope stored(saved);
    ArenaScope scope(scratch);
    const View out = allocate(scratch, DType::bf16, {kRows, kWidth});
    Norm::Saved state;
    norm->forward(context(training), {.x = upload(x), .branch = {}, .sum = {}}, out, state);
    y = download(out);
    if (training) {
      const View gradient = allocate(scratch, DType::bf16, {kRows, kWidth});
      norm->backward(context(true), upload(dy), gradient, false, state);
      dx = download(gradient);
    }
  }
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

/// SwiGLU forward and backward: the product reads `gate`, `up` and what `silu_codes` makes of SiLU.
struct Swiglu {
  Values product = Values(kRows * kInner);
  Values dx = Values(kRows * kWidth);
  Values down_gradient = Values(kWidth * kInner);

  Swiglu(const Values& pre, const Values& dy, bool silu_in_codes) {
    Values activated(kRows * kInner);
    for_each([&](int64_t row, int64_t i, size_t at) {
      activated[at] = silu(pre[static_cast<size_t>(row * kWidth + i)]);
    });
    if (silu_in_codes) {
      activated = as_codes(activated, kInner, 16, false);
    }
    for_each([&](int64_t row, int64_t i, size_t at) {
      const double gate = pre[static_cast<size_t>(row * kWidth + i)];
      const double up = pre[static_cast<size_t>(row * kWidth + kInner + i)];
      const double gradient = dy[static_cast<size_t>(row * kWidth + i)];
      const double sigmoid = 1 / (1 + std::exp(-gate));
      product[at] = to_bf16(activated[at] * up);
      dx[static_cast<size_t>(row * kWidth + i)] =
          gradient * up * (sigmoid + gate * sigmoid * (1 - sigmoid));
      dx[static_cast<size_t>(row * kWidth + kInner + i)] = gradient * activated[at];
      for (int64_t n = 0; n < kWidth; ++n) {
        down_gradient[static_cast<size_t>(n * kInner + i)] +=
            dy[static_cast<size_t>(row * kWidth + n)] * product[at];
      }
    });
  }

  template <typename Body>
  static void for_each(Body body) {
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kInner; ++i) {
        body(row, i, static_cast<size_t>(row * kInner + i));
      }
    }
  }
  /// As the down projection puts it.
  Values y() const {
    Values all(kRows * kWidth);
    for_each([&](int64_t row, int64_t i, size_t at) {
      all[static_cast<size_t>(row * kWidth + i)] = product[at];
    });
    return all;
  }
};

/// Elements further apart than a rounding to bf16 and the fp32 arithmetic; a code that a last bit
/// moves would be one of them.
int64_t differing(const Values& got, const Values& wanted) {
  REQUIRE(got.size() == wanted.size());
  int64_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    count += std::fabs(got[i] - wanted[i]) > 0x1p-8 * std::fabs(wanted[i]) + 1e-6 ? 1 : 0;
  }
  return count;
}

Values rms_norm(const Values& x) {
  Values y = x;
  for (int64_t row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < kWidth; ++i) {
      sum += std::pow(x[static_cast<size_t>(row * kWidth + i)], 2);
    }
    for (int64_t i = 0; i < kWidth; ++i) {
      y[static_cast<size_t>(row * kWidth + i)] *= 0.75 / std::sqrt(sum / kWidth + 1e-5);
    }
  }
  return y;
}

}  // namespace

TEST_CASE("a SwiGLU reads codes in both passes where the plan says so, as COAT's does") {
  Layer layer(plan_with("e4m3 group(16)", true, false));
  layer.run_mlp(true);
  const Values codes = as_codes(layer.x, kWidth, 16, true);
  const Swiglu wanted(codes, layer.dy, true);
  CHECK(differing(layer.y, wanted.y()) == 0);
  CHECK(differing(layer.dx, wanted.dx) == 0);
  CHECK(differing(layer.down_gradient, wanted.down_gradient) == 0);
  // Not what it would be of the values, nor of the codes without those of SiLU.
  CHECK(differing(layer.y, Swiglu(layer.x, layer.dy, false).y()) > kRows * kInner / 2);
  CHECK(differing(layer.y, Swiglu(codes, layer.dy, false).y()) > kRows * kInner / 2);
  layer.run_mlp(false);
  CHECK(differing(layer.y, wanted.y()) == 0);  // evaluation as in training
}

TEST_CASE("a GELU reads codes in both passes where the plan says so") {
  const auto gelu = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  for (const bool forward : {false, true}) {
    Layer layer(plan_with("e4m3 group(16)", forward, false), MlpKind::gelu);
    layer.run_mlp(true);
    const Values codes = as_codes(layer.x, kWidth, 16, true);
    Values y, dx;
    for (size_t i = 0; i < codes.size(); ++i) {
      y.push_back(gelu(forward ? codes[i] : layer.x[i]));
      dx.push_back(layer.dy[i] * (gelu(codes[i] + 1e-6) - gelu(codes[i] - 1e-6)) / 2e-6);
    }
    CHECK(differing(layer.y, y) == 0);
    CHECK(differing(layer.dx, dx) == 0);
  }
}

TEST_CASE("a SwiGLU of a plan that evaluates in high precision evaluates the values") {
  PrecisionPlan plan = plan_with("e4m3 group(16)", true, false);
  plan.evaluate_scaled = false;
  Layer layer(plan);
  layer.run_mlp(false);
  CHECK(differing(layer.y, Swiglu(layer.x, layer.dy, false).y()) == 0);
  CHECK(layer.saved_bytes == 0);
}

TEST_CASE("where only backward reads codes, forward reads the values") {
  Layer layer(plan_with("e4m3 group(16)", false, false));
  layer.run_mlp(true);
  const Swiglu of_values(layer.x, layer.dy, false);
  CHECK(differing(layer.y, of_values.y()) == 0);
  CHECK(differing(layer.down_gradient, of_values.down_gradient) == 0);
  const Swiglu of_codes(as_codes(layer.x, kWidth, 16, true), layer.dy, false);
  CHECK(differing(layer.dx, of_codes.dx) == 0);
}

TEST_CASE("the product of a SwiGLU is made again from 1x128 codes, as DeepSeek-V3's is") {
  Layer layer(plan_with("e4m3 1x128", false, true));
  layer.run_mlp(true);
  const Swiglu of_values(layer.x, layer.dy, false);
  CHECK(differing(layer.y, of_values.y()) == 0);
  const Swiglu of_codes(as_codes(layer.x, kWidth, 128, true), layer.dy, false);
  CHECK(differing(layer.dx, of_codes.dx) == 0);
  CHECK(differing(layer.down_gradient, of_codes.down_gradient) == 0);
  CHECK(differing(layer.down_gradient, of_values.down_gradient) > kWidth * kInner / 2);
  // Stored: up's input in bf16, codes and a scale for 128 of its output, nothing of the product.
  const size_t exact = kRows * kWidth * 2 + kRows * kWidth + kRows * kWidth / 128 * 4;
  CHECK(layer.saved_bytes >= exact);
  CHECK(layer.saved_bytes < exact + 2048);  // padding of four allocations
}

TEST_CASE("a product that is made again from values is the one that was") {
  Layer stored(plan_with("bf16", false, false));
  stored.run_mlp(true);
  Layer again(plan_with("bf16", false, true));
  again.run_mlp(true);
  CHECK(again.y == stored.y);
  CHECK(again.dx == stored.dx);
  CHECK(again.down_gradient == stored.down_gradient);
  CHECK(again.saved_bytes <= stored.saved_bytes - kRows * kInner * 2);
}

TEST_CASE("a norm reads codes in the passes that the plan says") {
  const auto norm_of = [](Layer& layer, bool training) {
    layer.run_norm(training);
    return layer.y;
  };
  Layer both(plan_with("e4m3 group(16)", true, false));
  const Values of_codes = rms_norm(as_codes(both.x, kWidth, 16, true));
  const Values of_values = rms_norm(both.x);
  CHECK(differing(norm_of(both, true), of_codes) == 0);
  const Values dx = both.dx;
  CHECK(differing(norm_of(both, false), of_codes) == 0);
  PrecisionPlan plan = plan_with("e4m3 group(16)", true, false);
  plan.evaluate_scaled = false;
  Layer training_only(plan);
  CHECK(differing(norm_of(training_only, true), of_codes) == 0);
  CHECK(differing(norm_of(training_only, false), of_values) == 0);
  Layer backward(plan_with("e4m3 group(16)", false, false));
  CHECK(differing(norm_of(backward, true), of_values) == 0);
  // The same codes with the statistics of the values, which are near those of the codes.
  CHECK(differing(backward.dx, dx) < kRows * kWidth / 2);
  CHECK(differing(of_codes, of_values) > kRows * kWidth / 2);
}
