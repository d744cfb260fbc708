// The down projection of a SwiGLU whose input is smoothed or left in bf16, against double
// precision and against the plain layer.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "nn/mlp.h"
#include "numeric/convert.h"
#include "plan_lists.h"

using namespace fp8train;

namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kWidth = 64;
constexpr int64_t kInner = 128;

std::vector<float> random_values(int64_t count, uint64_t stream, float size) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform_from_bits(philox(stream, 0, static_cast<uint64_t>(i)).word[0]);
    values[static_cast<size_t>(i)] = decode(encode<bf16>(size * (2.0F * value - 1.0F)));
  }
  return values;
}

PrecisionPlan plan_with(const std::string& name, SwigluInput swiglu) {
  PlanRequest request;
  request.plan = name;
  request.swiglu = swiglu;
  request.exemptions.patterns = {"up"};  // errors are those of the down projection
  return resolve_plan(request);
}

std::vector<LinearPlan> linears_of(const PrecisionPlan& plan) {
  return plan_linears(plan, {{"up", kWidth, 2 * kInner, 0, false},
                             {.name = "down",
                              .in_features = kInner,
                              .out_features = kWidth,
                              .block = 0,
                              .reads_swiglu = true}});
}

/// One MLP with its weights, which are bf16 numbers, and one batch.
struct Layer {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Parameter* up = store.add({.name = "up", .shape = {2 * kInner, kWidth}});
  Parameter* down;
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  std::unique_ptr<Mlp> mlp;
  std::vector<float> x = random_values(kRows * kWidth, 1, 1.0F);
  std::vector<float> up_weight = random_values(2 * kInner * kWidth, 2, 0.25F);
  std::vector<float> down_weight = random_values(kWidth * kInner, 3, 0.25F);
  std::vector<float> dy = random_values(kRows * kWidth, 4, 1.0F);
  std::vector<float> y, dx;

  explicit Layer(const PrecisionPlan& plan) {
    const std::vector<LinearPlan> plans = linears_of(plan);
    down =
        store.add({.name = "down", .shape = {kWidth, kInner}, .formats = parameter_formats(plan)});
    mlp = std::make_unique<Mlp>(MlpKind::swiglu, Linear(plans[0], up, nullptr, scaling),
                                Linear(plans[1], down, nullptr, scaling),
                                saved_format(plan, plan.saved_nonlinear));
    store.allocate(*device);
    scaling.allocate(*device);
    mlp->for_each_linear([&](Linear& linear) { linear.weight().allocate(*device, store); });
    saved.reserve(4 << 20);
    scratch.reserve(8 << 20);
  }
  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = &saved, .scratch = &scratch};
  }
  /// Channel 5, whose gate and up are aligned, sees rows 0 and 1 of the batch and no other: they
  /// alone have the first 16 columns of x, whose squares sum up to about 5.
  void inject(int k) {
    const float gain = std::ldexp(1.0F, k) / 4.0F;
    for (int64_t row = 2; row < kRows; ++row) {
      std::fill_n(x.begin() + row * kWidth, 16, 0.0F);
    }
    std::copy_n(x.begin(), 16, x.begin() + kWidth);
    for (const int64_t row : {int64_t{5}, kInner + 5}) {
      for (int64_t c = 0; c < kWidth; ++c) {
        up_weight[static_cast<size_t>(row * kWidth + c)] =
            c < 16 ? gain * x[static_cast<size_t>(c)] : 0.0F;
      }
    }
  }
  View upload(const std::vector<float>& values, int64_t columns) {
    const View view = allocate(scratch, DType::bf16, {kRows, columns});
    for (size_t i = 0; i < values.size(); ++i) {
      view.as<bf16>()[i] = encode<bf16>(values[i]);
    }
    return view;
  }
  static std::vector<float> download(const View& view) {
    std::vector<float> values;
    for (int64_t i = 0; i < view.count(); ++i) {
      values.push_back(decode(view.as<bf16>()[i]));
    }
    return values;
  }
  void set_weights() {
    set_value(*device, *up, up_weight.data());
    set_value(*device, *down, down_weight.data());
    mlp->for_each_linear(
        [&](Linear& linear) { linear.weight().refresh(context(), LinearWeight::Refresh::all); });
  }
  void run() {
    ArenaScope stored(saved);
    ArenaScope scope(scratch);
    const View out = allocate(scratch, DType::bf16, {kRows, kWidth});
    const View gradient = allocate(scratch, DType::bf16, {kRows, kWidth});
    Mlp::Saved state;
    const InputTensor input = mlp->up().allocate_input(context(), kRows);
    for (size_t i = 0; i < x.size(); ++i) {
      input.plain.as<bf16>()[i] = encode<bf16>(x[i]);
    }
    mlp->forward(context(), input, out, state);
    mlp->backward(context(), upload(dy, kWidth), gradient, state);
    y = download(out);
    dx = download(gradient);
  }
  std::vector<float> down_gradient() {
    std::vector<float> values(static_cast<size_t>(kWidth * kInner));
    if (!down->gradient.empty()) {
      std::copy_n(down->gradient.as<float>(), values.size(), values.begin());
      return values;
    }
    const View read = allocate(scratch, DType::f32, down->shape);
    ops::read_stored(device->stream(), down->stored_gradient, read);
    std::copy_n(read.as<float>(), values.size(), values.begin());
    return values;
  }
};

struct Wanted {
  std::vector<double> y, d_down;
};

/// In double precision; what the layer before the down projection says is rounded to bf16.
Wanted wanted(const Layer& layer) {
  std::vector<double> product(kRows * kInner);
  Wanted result{std::vector<double>(kRows * kWidth), std::vector<double>(kWidth * kInner)};
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < kInner; ++i) {
      double values[2] = {0, 0};
      for (int64_t side = 0; side < 2; ++side) {
        for (int64_t c = 0; c < kWidth; ++c) {
          values[side] += static_cast<double>(layer.x[static_cast<size_t>(row * kWidth + c)]) *
                          layer.up_weight[static_cast<size_t>((side * kInner + i) * kWidth + c)];
        }
        values[side] = decode(encode<bf16>(static_cast<float>(values[side])));
      }
      const double activated = values[0] / (1 + std::exp(-values[0])) * values[1];
      product[static_cast<size_t>(row * kInner + i)] = activated;
      for (int64_t n = 0; n < kWidth; ++n) {
        const double dy = layer.dy[static_cast<size_t>(row * kWidth + n)];
        result.y[static_cast<size_t>(row * kWidth + n)] +=
            activated * layer.down_weight[static_cast<size_t>(n * kInner + i)];
        result.d_down[static_cast<size_t>(n * kInner + i)] += dy * activated;
      }
    }
  }
  return result;
}

/// 10 log10 of signal over noise, over elements begin .. end - 1.
double snr(const std::vector<float>& got, const std::vector<double>& want, size_t begin,
           size_t end) {
  double signal = 0;
  double noise = 0;
  for (size_t i = begin; i < end; ++i) {
    signal += want[i] * want[i];
    noise += (got[i] - want[i]) * (got[i] - want[i]);
  }
  return 10 * std::log10(signal / noise);
}

struct Snr {
  double outliers, others, d_down;
};

Snr measure(const std::string& row, SwigluInput swiglu, int k) {
  Layer layer(plan_with(row, swiglu));
  layer.inject(k);
  layer.set_weights();
  layer.run();
  const Wanted want = wanted(layer);
  return {snr(layer.y, want.y, 0, 2 * kWidth), snr(layer.y, want.y, 2 * kWidth, kRows * kWidth),
          snr(layer.down_gradient(), want.d_down, 0, want.d_down.size())};
}

}  // namespace

TEST_CASE("an outlier of two aligned rows costs the other tokens their SNR unless smoothed") {
  const Snr usual = measure("te-current", SwigluInput::as_planned, 0);
  CHECK(usual.others > 25);
  for (const int k : {6, 8, 9}) {
    const Snr plain = measure("te-current", SwigluInput::as_planned, k);
    const Snr smooth = measure("te-current", SwigluInput::smoothed, k);
    const Snr bf16 = measure("te-current", SwigluInput::high_precision, k);
    CAPTURE(k, plain.others, smooth.others, bf16.others, plain.outliers, smooth.outliers);
    WARN("gain 2^" << k << ": SNR of the other tokens " << plain.others << " dB plain, "
                   << smooth.others << " dB smooth, " << bf16.others << " dB bf16_down_input");
    CHECK(smooth.others > usual.others - 3);
    CHECK(smooth.outliers > 25);  // nothing is clipped
    CHECK(smooth.d_down > 20);
    CHECK(bf16.others > 45);
    CHECK((k < 8 || plain.others < 15));
  }
}

TEST_CASE("an outlier that no history holds is clipped by its gain, not by the square of it") {
  // Of the outlier tokens' y: how many times too small it is.
  const auto clipped_by = [](SwigluInput swiglu, int k) {
    Layer layer(plan_with("te-delayed", swiglu));
    layer.inject(0);
    layer.set_weights();
    layer.run();
    double norm = 0;
    layer.scaling.update(layer.device->stream(), layer.scaling.due(0), &norm);
    layer.inject(k);
    layer.set_weights();
    layer.run();
    const Wanted want = wanted(layer);
    double got = 0;
    double wanted_size = 0;
    for (size_t i = 0; i < 2 * kWidth; ++i) {
      got += double{layer.y[i]} * layer.y[i];
      wanted_size += want.y[i] * want.y[i];
    }
    return std::sqrt(wanted_size / got);
  };
  for (const int k : {4, 6, 8}) {
    const double plain = clipped_by(SwigluInput::as_planned, k);
    const double smooth = clipped_by(SwigluInput::smoothed, k);
    WARN("gain 2^" << k << ": clipped by " << plain << " plain, by " << smooth << " smooth");
    CHECK(smooth <= std::ldexp(1.0, k));
    CHECK(plain >= std::ldexp(1.0, 2 * k - 3));  // the usual largest value is not 1
    CHECK(clipped_by(SwigluInput::high_precision, k) == Approx(1).epsilon(0.01));
  }
}

TEST_CASE("smoothed layers have the y and the gradients of double precision in every FP8 plan") {
  // E4M3 rounds to 2^-4 at most, 31 dB below the value on average; E5M2 gradients to 2^-3, 25 dB.
  const std::string name = GENERATE(from_range(test::fp8_plans()));
  const SwigluInput swiglu = GENERATE(SwigluInput::smoothed, SwigluInput::high_precision);
  CAPTURE(name, static_cast<int>(swiglu));
  PrecisionPlan plan = plan_with(name, swiglu);
  plan.weight = plain(DType::f32);  // what is stored in few bits would hide the errors of the GEMMs
  plan.master_weight.reset();
  plan.weight_gradient = plan.gradient_wire = plain(DType::f32);
  Layer layer(plan);
  for (int64_t i = 0; i < kInner; ++i) {  // channels of different sizes
    const float gain = std::ldexp(1.0F, static_cast<int>(i % 7) - 3);
    for (int64_t c = 0; c < kWidth; ++c) {
      layer.up_weight[static_cast<size_t>((kInner + i) * kWidth + c)] *= gain;
    }
  }
  layer.set_weights();
  layer.run();
  const Wanted want = wanted(layer);
  // A product that is made of E4M3 codes, in forward or again in backward, has their error.
  const bool forward_rounds = swiglu == SwigluInput::smoothed || plan.forward_reads_saved;
  const bool backward_rounds = forward_rounds || plan.recompute_swiglu;
  CHECK(snr(layer.y, want.y, 0, want.y.size()) > (forward_rounds ? 25 : 45));
  CHECK(snr(layer.down_gradient(), want.d_down, 0, want.d_down.size()) >
        (backward_rounds ? 20 : 45));
  // dgrad does not know of the scales: dx is that of the plain layer, to the bit.
  plan.swiglu = SwigluInput::as_planned;
  Layer same(plan);
  same.up_weight = layer.up_weight;
  same.set_weights();
  same.run();
  CHECK(layer.dx == same.dx);
}

TEST_CASE("smoothing changes no bit where every number is a code") {
  PlanRequest request;
  request.plan = "te-current";
  request.power_2_scale = true;
  const auto run = [&](SwigluInput swiglu, std::vector<float>& y, std::vector<float>& dw) {
    request.swiglu = swiglu;
    Layer layer(resolve_plan(request));
    for (size_t i = 0; i < layer.down_weight.size(); ++i) {
      layer.down_weight[i] = static_cast<float>(static_cast<int>(i * 7 % 5) - 2);
    }
    layer.set_weights();
    const Linear& linear = layer.mlp->down();
    const InputTensor input = linear.allocate_input(layer.context(), kRows);
    float largest = 0;
    for (int64_t i = 0; i < kRows * kInner; ++i) {
      const auto channel = static_cast<int>(i % kInner);
      const float scale = input.smoothing.empty() ? 1.0F : std::ldexp(1.0F, channel % 3 - 1);
      if (!input.smoothing.empty()) {
        input.smoothing.as<float>()[channel] = scale;
      }
      const float value = scale * static_cast<float>(static_cast<int>(i * 11 % 7) - 3);
      input.plain.as<bf16>()[i] = encode<bf16>(value);
      largest = std::max(largest, std::abs(value));
    }
    *input.cast.amax = largest;
    const View out = allocate(layer.scratch, DType::bf16, {kRows, kWidth});
    std::vector<float> dy(static_cast<size_t>(kRows * kWidth));
    for (size_t i = 0; i < dy.size(); ++i) {
      dy[i] = static_cast<float>(static_cast<int>(i * 13 % 3) - 1);
    }
    Linear::Saved saved;
    linear.forward(layer.context(), input, out, saved);
    linear.backward(layer.context(), layer.upload(dy, kWidth), {}, saved);
    y = Layer::download(out);
    dw = layer.down_gradient();
  };
  std::vector<float> plain_y, plain_dw, smooth_y, smooth_dw;
  run(SwigluInput::as_planned, plain_y, plain_dw);
  run(SwigluInput::smoothed, smooth_y, smooth_dw);
  CHECK(plain_y == smooth_y);
  CHECK(plain_dw == smooth_dw);
}
