// One linear layer in each of its precision forms against the same product in double precision on
// the values that its formats can hold.

#include "nn/linear.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <string>

#include "base/philox.h"
#include "numeric/convert.h"
#include "ops/pointwise/activation.h"
#include "support/environment.h"

using namespace fp8train;

namespace {

constexpr int64_t kRows = 32;
constexpr int64_t kIn = 48;
constexpr int64_t kOut = 64;
double norm = 0.0;  // of steps in which every amax is finite

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform_from_bits(philox(stream, 0, static_cast<uint64_t>(i)).word[0]);
    values[static_cast<size_t>(i)] = decode(encode<bf16>(2.0F * value - 1.0F));
  }
  return values;
}

struct Layer {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Parameter* weight = store.add({.name = "w", .shape = {kOut, kIn}});
  Parameter* bias = store.add({.name = "b", .shape = {kOut}});
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  Linear linear;
  std::vector<float> x = random_values(kRows * kIn, 1);
  std::vector<float> w = random_values(kOut * kIn, 2);
  std::vector<float> b = random_values(kOut, 3);
  std::vector<float> dy = random_values(kRows * kOut, 4);

  explicit Layer(const PrecisionPlan& plan, bool biased = true,
                 const TensorFormat& gradient = plain(DType::f32))
      : linear(plan_linears(plan, {{"layer", kIn, kOut, 0, false}}).front(), weight,
               biased ? bias : nullptr, scaling) {
    weight->formats.gradient = gradient;
    weight->overwritten = true;
    store.allocate(*device);
    scaling.allocate(*device);
    linear.weight().allocate(*device, store);
    saved.reserve(1 << 20);
    scratch.reserve(1 << 20);
    copy_from_host(*device, weight->value, w.data());
    copy_from_host(*device, bias->value, b.data());
    linear.weight().refresh(context(), LinearWeight::Refresh::all);
  }
  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = &saved, .scratch = &scratch};
  }
  View upload(const std::vector<float>& values, DType dtype, int64_t columns) {
    const View view = allocate(scratch, dtype, {kRows, columns});
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::f32) {
        view.as<float>()[i] = values[i];
      } else {
        view.as<bf16>()[i] = encode<bf16>(values[i]);
      }
    }
    return view;
  }
};

std::vector<float> download(const View& view) {
  std::vector<float> values(static_cast<size_t>(view.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = view.dtype == DType::f32 ? view.as<float>()[i] : decode(view.as<bf16>()[i]);
  }
  return values;
}

double relative_error(const std::vector<float>& got, const std::vector<double>& wanted) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    size += wanted[i] * wanted[i];
  }
  return std::sqrt(error / size);
}

struct Errors {
  double y, dx, dw, db;
};

Errors run(Layer& layer, DType activation) {
  const View x = layer.upload(layer.x, activation, kIn);
  const View y = allocate(layer.scratch, activation, {kRows, kOut});
  const View dx = allocate(layer.scratch, activation, {kRows, kIn});
  Linear::Saved saved;
  layer.linear.forward(layer.context(), x, y, saved);
  layer.linear.backward(layer.context(), layer.upload(layer.dy, activation, kOut), dx, saved);
  std::vector<double> wanted_y(kRows * kOut);
  std::vector<double> wanted_dx(kRows * kIn);
  std::vector<double> wanted_dw(kOut * kIn);
  std::vector<double> wanted_db(kOut);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t n = 0; n < kOut; ++n) {
      const double dy = layer.dy[r * kOut + n];
      wanted_y[r * kOut + n] = layer.b[n];
      wanted_db[n] += dy;
      for (size_t k = 0; k < kIn; ++k) {
        const double x_value = layer.x[r * kIn + k];
        const double w_value = layer.w[n * kIn + k];
        wanted_y[r * kOut + n] += x_value * w_value;
        wanted_dx[r * kIn + k] += dy * w_value;
        wanted_dw[n * kIn + k] += dy * x_value;
      }
    }
  }
  return {relative_error(download(y), wanted_y), relative_error(download(dx), wanted_dx),
          relative_error(to_host_f32(*layer.device, layer.weight->gradient), wanted_dw),
          relative_error(to_host_f32(*layer.device, layer.bias->gradient), wanted_db)};
}

/// The gradient of the weight after a pass that overwrites it or adds to it.
std::vector<float> gradient_of(Layer& layer, bool overwrites) {
  StepContext context = layer.context();
  context.overwrites_gradients = overwrites;
  const View y = allocate(layer.scratch, DType::bf16, {kRows, kOut});
  Linear::Saved saved;
  layer.linear.forward(context, layer.upload(layer.x, DType::bf16, kIn), y, saved);
  layer.linear.backward(context, layer.upload(layer.dy, DType::bf16, kOut), {}, saved);
  return download(layer.weight->stored_gradient.codes);
}

}  // namespace

TEST_CASE("fp32 and bf16 layers are exact up to the rounding of their outputs") {
  Layer fp32(plan_named("fp32"));
  const Errors exact = run(fp32, DType::f32);
  CHECK(exact.y < 1e-6);
  CHECK(exact.dx < 1e-6);
  CHECK(exact.dw < 1e-6);
  CHECK(exact.db < 1e-6);
  Layer half(plan_named("bf16"));
  const Errors rounded = run(half, DType::bf16);  // the inputs are bf16 values
  CHECK(rounded.y < 3e-3);
  CHECK(rounded.dx < 3e-3);
  CHECK(rounded.dw < 1e-6);  // fp32 gradient of exact products
}

TEST_CASE("FP8 layers err by the formats' rounding and no more") {
  Layer current(plan_named("te-current"));
  const Errors errors = run(current, DType::bf16);
  // E4M3 keeps 3 mantissa bits (relative error about 2.6 % an operand), E5M2 two (about 5 %).
  CHECK(errors.y > 0.01);
  CHECK(errors.y < 0.06);
  CHECK(errors.dx < 0.09);
  CHECK(errors.dw < 0.09);
  CHECK(errors.db < 1e-6);
}

TEST_CASE("delayed scaling uses the scale of earlier passes and records the amax of this one") {
  Layer layer(plan_named("te-delayed"));
  run(layer, DType::bf16);
  float amax = 0;
  for (const auto& slot : layer.scaling.slots()) {
    CHECK(*slot->scale == 1.0F);
    CHECK(*slot->amax > 0.9F);  // uniform in [-1, 1]
    amax = std::max(amax, *slot->amax);
  }
  CHECK(amax <= 1.0F);
  layer.scaling.update(layer.device->stream(), layer.scaling.due(0), &norm);
  for (const auto& slot : layer.scaling.slots()) {
    CHECK(*slot->scale > 400.0F);
    CHECK(*slot->amax == 0.0F);
  }
}

TEST_CASE("a cached weight keeps the scale it was cast with") {
  Layer layer(plan_named("te-delayed"));
  run(layer, DType::bf16);
  layer.scaling.update(layer.device->stream(), layer.scaling.due(0), &norm);
  // The slots have moved on; the codes of the weight were cast with scale 1 and must still be read
  // with it.
  CHECK(run(layer, DType::bf16).y < 0.06);
}

TEST_CASE("a gradient stored in bf16 is the fp32 gradient, rounded once") {
  for (const char* plan : {"bf16", "te-delayed", "te-current", "te-blockwise", "torchao-rowwise"}) {
    CAPTURE(plan);
    Layer exact(plan_named(plan));
    Layer stored(plan_named(plan), true, plain(DType::bf16));
    const std::vector<float> product = gradient_of(exact, true);
    const std::vector<float> rounded = gradient_of(stored, true);
    const std::vector<float> sum = gradient_of(stored, false);
    size_t differing = 0;
    for (size_t i = 0; i < product.size(); ++i) {
      const float once = decode(encode<bf16>(product[i]));
      differing += rounded[i] != once ? 1 : 0;
      differing += sum[i] != decode(encode<bf16>(once + product[i])) ? 1 : 0;
    }
    CHECK(differing == 0);
  }
}

TEST_CASE("a product writes a gradient in bf16 where nothing is added") {
  const std::string engine = ops::cpu_gemm_engine(DType::bf16);
  const bool in_fp32 = engine == "fp32 (avx512)";
  if (!in_fp32 && !engine.starts_with("bf16")) {
    return;  // weights are not packed: copies of them take more memory than the gradient
  }
  const test::EnvironmentScope packed("FP8TRAIN_CPU_PACK", "1");
  const auto scratch_of = [](const TensorFormat& gradient, bool overwrites) {
    Layer layer(plan_named("bf16"), false, gradient);
    gradient_of(layer, overwrites);
    return layer.scratch.high_water();
  };
  const size_t direct = scratch_of(plain(DType::f32), true);
  // Where bf16 is multiplied in fp32, the product itself holds an fp32 sum.
  CHECK(scratch_of(plain(DType::bf16), true) ==
        direct + (in_fp32 ? sizeof(float) * kOut * kIn : 0));
  CHECK(scratch_of(plain(DType::bf16), false) >= direct + sizeof(float) * kOut * kIn);
}

TEST_CASE("override_linear_precision keeps one GEMM in bf16") {
  PlanRequest request;
  request.plan = "te-current";
  request.override_linear_precision = {false, false, true};
  Layer layer(resolve_plan(request));
  const size_t before = layer.saved.mark();
  layer.linear.allocate_input(layer.context(), kRows);
  CHECK(layer.saved.mark() - before == kRows * kIn * sizeof(bf16));  // wgrad reads x itself
  const Errors errors = run(layer, DType::bf16);
  CHECK(errors.y > 0.01);
  CHECK(errors.dw < 1e-6);
}

namespace {

/// All that a training pass of gelu, the layer and a gelu behind it gives.
struct Pass {
  std::vector<float> y, dx, dw, db, amax;
  bool operator==(const Pass&) const = default;
};

Pass run_between_activations(Layer& layer, DType activation, bool cast_by_producer, bool training) {
  Pass pass;
  StepContext context = layer.context();
  context.training = training;
  const View x = layer.upload(layer.x, activation, kIn);
  const View dy = layer.upload(layer.dy, activation, kOut);
  const View y = allocate(layer.scratch, activation, {kRows, kOut});
  const View dx = allocate(layer.scratch, activation, {kRows, kIn});
  const View plain_x = allocate(layer.saved, activation, {kRows, kIn});
  const View plain_dy = allocate(layer.scratch, activation, {kRows, kOut});
  Linear::Saved saved;
  if (cast_by_producer) {
    const InputTensor input = layer.linear.allocate_input(context, kRows);
    ops::gelu_forward(context.stream, x, input.plain, input.cast);
    layer.linear.forward(context, input, y, saved);
  } else {
    ops::gelu_forward(context.stream, x, plain_x);
    layer.linear.forward(context, plain_x, y, saved);
  }
  pass.y = download(y);
  if (!training) {
    return pass;
  }
  if (cast_by_producer) {
    const InputTensor gradient = layer.linear.allocate_gradient(context, kRows);
    ops::gelu_backward(context.stream, dy, y, gradient.plain, gradient.cast);
    layer.linear.backward(context, gradient, dx, saved);
  } else {
    ops::gelu_backward(context.stream, dy, y, plain_dy);
    layer.linear.backward(context, plain_dy, dx, saved);
  }
  pass.dx = download(dx);
  pass.dw = to_host_f32(*layer.device, layer.weight->gradient);
  pass.db = to_host_f32(*layer.device, layer.bias->gradient);
  for (const auto& slot : layer.scaling.slots()) {
    pass.amax.push_back(*slot->amax);
  }
  return pass;
}

}  // namespace

TEST_CASE("an input that its producer has cast gives the same bits") {
  for (const char* plan : {"fp32", "bf16", "te-delayed", "te-current"}) {
    for (const bool biased : {false, true}) {
      for (int plain_gemm = -1; plain_gemm < 3; ++plain_gemm) {  // fprop, dgrad, wgrad
        if (plain_gemm >= 0 && !plan_named(plan).fprop.a.is_scaled()) {
          continue;
        }
        PlanRequest request;
        request.plan = plan;
        if (plain_gemm >= 0) {
          request.override_linear_precision = {plain_gemm == 0, plain_gemm == 1, plain_gemm == 2};
        }
        const PrecisionPlan resolved = resolve_plan(request);
        INFO(plan << ", biased " << biased << ", plain GEMM " << plain_gemm);
        Layer one(resolved, biased);
        Layer two(resolved, biased);
        const DType activation = resolved.activation;
        for (const bool training : {true, false, true}) {  // the second time with other scales
          CHECK(run_between_activations(one, activation, true, training) ==
                run_between_activations(two, activation, false, training));
          for (Layer* layer : {&one, &two}) {
            layer->scaling.update(layer->device->stream(), 0, &norm);
          }
        }
      }
    }
  }
}

TEST_CASE("an input that only FP8 GEMMs read is never written in the activation type") {
  for (const bool biased : {false, true}) {
    Layer delayed(plan_named("te-delayed"), biased);
    const InputTensor x = delayed.linear.allocate_input(delayed.context(), kRows);
    CHECK(x.plain.empty());
    CHECK_FALSE(x.cast.out.empty());
    const InputTensor dy = delayed.linear.allocate_gradient(delayed.context(), kRows);
    CHECK(dy.plain.empty() == !biased);  // the bias gradient sums it
    CHECK_FALSE(dy.cast.out.empty());
  }
  Layer current(plan_named("te-current"));
  const InputTensor x = current.linear.allocate_input(current.context(), kRows);
  CHECK_FALSE(x.plain.empty());
  CHECK(x.cast.out.empty());
  CHECK(x.cast.amax != nullptr);
}
