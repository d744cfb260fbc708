// A layer that quantizes and has no weight: c = q k^T of two activations, as the products of
// attention are. In each plan it gives, bit for bit, what a Linear gives whose weight is k.

#include "nn/quantized_input.h"

#include <catch2/catch.hpp>

#include "base/philox.h"
#include "nn/linear.h"
#include "numeric/convert.h"
#include "ops/pointwise/activation.h"

using namespace fp8train;

namespace {

constexpr int64_t kRows = 48;
constexpr int64_t kKeys = 96;
constexpr int64_t kWidth = 160;  // a block of 128 and a part of one

class Similarity {
 public:
  struct Saved {
    ops::GemmOperand q, k;
  };

  Similarity(const LinearPlan& plan, ScalingState& scaling)
      : plan_(plan),
        q_(scaling, "similarity", {"q", plan.fprop.a, plan.fprop.b},
           {"q.dk", plan.wgrad.b, plan.wgrad.a}),
        k_(scaling, "similarity", {"k", plan.fprop.b, plan.fprop.a},
           {"k.dq", plan.dgrad.b, plan.dgrad.a}),
        dc_(scaling, "similarity", {"dc", plan.dgrad.a, plan.dgrad.b},
            {"dc.dk", plan.wgrad.a, plan.wgrad.b}) {}

  InputTensor allocate_q(const StepContext& context) const {
    return q_.allocate(context, plan_.activation, {kRows, kWidth},
                       {context.scratch, context.saved});
  }
  InputTensor allocate_gradient(const StepContext& context) const {
    return dc_.allocate(context, plan_.activation, {kRows, kKeys},
                        {context.scratch, context.scratch});
  }
  void forward(const StepContext& context, const InputTensor& q, const InputTensor& k, View c,
               Saved& saved) const {
    ArenaScope scope(*context.scratch);
    const QuantizedInput::Memory memory = {context.scratch, context.saved};
    const QuantizedInput::Operands of_q = q_.operands(context, q, memory);
    const QuantizedInput::Operands of_k = k_.operands(context, k, memory);
    multiply(context, {.plan = plan_.fprop, .a = of_q.along_rows, .b = of_k.along_rows, .c = c});
    saved = {of_q.along_columns, of_k.along_columns};
  }
  void backward(const StepContext& context, const InputTensor& dc, View dq, View dk,
                const Saved& saved) const {
    ArenaScope scope(*context.scratch);
    const QuantizedInput::Operands of_dc =
        dc_.operands(context, dc, {context.scratch, context.scratch});
    multiply(context, {.plan = plan_.dgrad, .a = of_dc.along_rows, .b = saved.k, .c = dq});
    multiply(context, {.plan = plan_.wgrad, .a = of_dc.along_columns, .b = saved.q, .c = dk});
  }

 private:
  LinearPlan plan_;
  QuantizedInput q_, k_, dc_;
};

LinearPlan linear_plan(const PrecisionPlan& plan) {
  return plan_linears(plan, {{"layer", kWidth, kKeys, 0, false}}).front();
}

/// The device, the scales and the arenas of one of the two layers.
struct Pass {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ScalingState scaling;
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  uint64_t number = 1;
  double norm = 0;

  void begin() {
    saved.reserve(size_t{1} << 20);
    scratch.reserve(size_t{2} << 20);
    scaling.allocate(*device);
  }
  StepContext context() {
    return {.device = device.get(),
            .stream = device->stream(),
            .saved = &saved,
            .scratch = &scratch,
            .overwrites_gradients = true,
            .seed = 7,
            .pass = &number};
  }
  View values(DType dtype, const Shape& shape, uint64_t stream) {
    const View view = allocate(scratch, dtype, shape);
    for (int64_t i = 0; i < view.count(); ++i) {
      const auto word = philox(stream, number, static_cast<uint64_t>(i)).word[0];
      const bf16 value = encode<bf16>(4.0F * uniform_from_bits(word) - 2.0F);
      if (dtype == DType::bf16) {
        view.as<bf16>()[i] = value;
      } else {
        view.as<float>()[i] = decode(value);
      }
    }
    return view;
  }
  /// Returns the amax of each slot, and begins the next pass with the scales that follow.
  std::vector<float> end() {
    std::vector<float> amax;
    for (const auto& slot : scaling.slots()) {
      amax.push_back(*slot->amax);
    }
    scaling.update(device->stream(), scaling.due(0), &norm);
    saved.release(0);
    scratch.release(0);
    ++number;
    return amax;
  }
};

struct Results {
  std::vector<uint8_t> c, dq, dk;
  std::vector<float> amax;
  bool operator==(const Results&) const = default;
};

std::vector<uint8_t> bytes_of(const View& view) {
  return {view.as<uint8_t>(), view.as<uint8_t>() + view.bytes()};
}

struct Outputs {
  View c, dq, dk;

  Outputs(Pass& pass, DType type)
      : c(allocate(pass.scratch, type, {kRows, kKeys})),
        dq(allocate(pass.scratch, type, {kRows, kWidth})),
        dk(allocate(pass.scratch, DType::f32, {kKeys, kWidth})) {}
  Results results(Pass& pass) const {
    Results results = {bytes_of(c), bytes_of(dq), bytes_of(dk), {}};
    results.amax = pass.end();
    return results;
  }
};

/// Two passes; activation functions make q and the gradient, and cast them where they can.
std::vector<Results> run_similarity(const PrecisionPlan& plan) {
  Pass pass;
  const Similarity layer(linear_plan(plan), pass.scaling);
  pass.begin();
  std::vector<Results> all;
  for (int i = 0; i < 2; ++i) {
    const StepContext context = pass.context();
    const DType type = plan.activation;
    const Outputs out(pass, type);
    const InputTensor q = layer.allocate_q(context);
    ops::gelu_forward(context.stream, pass.values(type, {kRows, kWidth}, 1), q.plain, q.cast);
    Similarity::Saved saved;
    layer.forward(context, q, pass.values(type, {kKeys, kWidth}, 2), out.c, saved);
    const InputTensor dc = layer.allocate_gradient(context);
    ops::gelu_backward(context.stream, pass.values(type, {kRows, kKeys}, 3), out.c, dc.plain,
                       dc.cast);
    layer.backward(context, dc, out.dq, out.dk, saved);
    all.push_back(out.results(pass));
  }
  return all;
}

std::vector<Results> run_linear(const PrecisionPlan& plan) {
  Pass pass;
  ParameterStore store;
  Parameter* const weight = store.add({.name = "w", .shape = {kKeys, kWidth}});
  weight->overwritten = true;
  Linear layer(linear_plan(plan), weight, nullptr, pass.scaling);
  store.allocate(*pass.device);
  pass.begin();
  layer.weight().allocate(*pass.device, store);
  std::vector<Results> all;
  for (int i = 0; i < 2; ++i) {
    const StepContext context = pass.context();
    const DType type = plan.activation;
    Outputs out(pass, type);
    out.dk = weight->gradient;
    const View q = allocate(pass.scratch, type, {kRows, kWidth});
    ops::gelu_forward(context.stream, pass.values(type, {kRows, kWidth}, 1), q);
    const View k = pass.values(DType::f32, {kKeys, kWidth}, 2);
    copy_from_host(*pass.device, weight->value, k.as<float>());
    layer.weight().refresh(context, LinearWeight::Refresh::all);
    Linear::Saved saved;
    layer.forward(context, q, out.c, saved);
    const View dc = allocate(pass.scratch, type, {kRows, kKeys});
    ops::gelu_backward(context.stream, pass.values(type, {kRows, kKeys}, 3), out.c, dc);
    layer.backward(context, dc, out.dq, saved);
    all.push_back(out.results(pass));
  }
  return all;
}

}  // namespace

TEST_CASE("a layer without a weight quantizes its two inputs as a linear layer does") {
  for (const char* plan : {"bf16", "te-delayed", "te-current", "te-blockwise", "te-mxfp8",
                           "te-nvfp4", "torchao-rowwise", "int8-qat"}) {
    CAPTURE(plan);
    REQUIRE(linear_plan(plan_named(plan)).exempt_reason.empty());
    const std::vector<Results> ours = run_similarity(plan_named(plan));
    CHECK(ours == run_linear(plan_named(plan)));
    CHECK(ours[0].c != ours[1].c);
  }
}

TEST_CASE("a pass allocates operands of the GEMMs that it runs") {
  const LinearPlan plan = linear_plan(plan_named("te-mxfp8"));
  Pass pass;
  const QuantizedInput input(pass.scaling, "layer", {"x", plan.fprop.a, plan.fprop.b},
                             {"x.wgrad", plan.wgrad.b, plan.wgrad.a}, false);
  pass.begin();
  StepContext context = pass.context();
  const InputTensor x = pass.values(DType::bf16, {kRows, kWidth}, 1);
  const auto quantized = [&](QuantizedInput::Memory memory) {
    const QuantizedInput::Operands operands = input.operands(context, x, memory);
    return std::pair{!operands.along_rows.is_plain(), !operands.along_columns.is_plain()};
  };
  CHECK(quantized({&pass.scratch, nullptr}) == std::pair{true, false});
  CHECK(pass.saved.mark() == 0);
  CHECK(quantized({nullptr, &pass.saved}) == std::pair{false, true});
  CHECK(pass.saved.mark() > kRows * kWidth);
  CHECK(quantized({&pass.scratch, &pass.saved}) == std::pair{true, true});
  context.training = false;  // and the plan does not evaluate in scaled formats
  CHECK(quantized({&pass.scratch, nullptr}) == std::pair{false, false});
  context.training = true;
  context.plain = true;
  CHECK(quantized({&pass.scratch, &pass.saved}) == std::pair{false, false});
}
