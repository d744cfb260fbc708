// A linear layer in each plan with current scales of FP8 codes, against products in
// double precision of operands that the test casts itself, block by block. What remains is the
// fp32 accumulation, below 1e-6, and the rounding of y and dx to bf16, below 2^-9 = 2e-3 for each
// element; another orientation, block or format of any operand would err by percents.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/error.h"
#include "base/philox.h"
#include "nn/linear.h"
#include "numeric/bits.h"
#include "numeric/convert.h"
#include "ops/cast/quantize.h"
#include "ops/gemm/gemm.h"
#include "plan_lists.h"

using namespace fp8train;

namespace {

constexpr double kAccumulation = 1e-6;
constexpr double kBf16 = 2e-3;
constexpr int64_t kIn = 160;  // a block of 128 and a part of one, five of 32
constexpr int64_t kOut = 192;

/// bf16 values of magnitudes that differ by a factor of 2^8 from element to element.
std::vector<float> values_of(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxBlock bits = philox(stream, 0, i);
    const float value = 2.0F * uniform_from_bits(bits.word[0]) - 1.0F;
    values[i] = decode(encode<bf16>(std::ldexp(value, static_cast<int>(bits.word[1] % 9) - 4)));
  }
  return values;
}

struct Matrix {
  int64_t rows, columns;
  std::vector<float> values;

  float& at(int64_t row, int64_t column) {
    return values[static_cast<size_t>(row * columns + column)];
  }
  Matrix transposed() {
    Matrix result = {columns, rows, values};
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        result.at(column, row) = at(row, column);
      }
    }
    return result;
  }
};

/// What a code is divided by: format_max / amax, as the format's scales are rounded.
double scale_of(double amax, const TensorFormat& format) {
  const double largest = format.dtype == DType::e4m3 ? 448.0 : 57344.0;
  if (amax == 0) {
    return 1.0;
  }
  if (format.scale_type == ScaleType::f32) {
    return static_cast<float>(largest / amax);
  }
  return std::exp2(std::floor(std::log2(largest / amax)));
}

/// What `format` makes of the matrix when a GEMM contracts it along its rows.
Matrix cast_along_rows(Matrix x, const TensorFormat& format) {
  const int64_t height = format.block.rows == 0 ? x.rows : format.block.rows;
  const int64_t width = format.block.columns == 0 ? x.columns : format.block.columns;
  for (int64_t top = 0; format.is_scaled() && top < x.rows; top += height) {
    for (int64_t left = 0; left < x.columns; left += width) {
      const auto each = [&](const auto& work) {
        for (int64_t row = top; row < std::min(x.rows, top + height); ++row) {
          for (int64_t column = left; column < std::min(x.columns, left + width); ++column) {
            work(x.at(row, column));
          }
        }
      };
      double amax = 0;
      each([&](float& value) { amax = std::max(amax, double{std::abs(value)}); });
      const double scale = scale_of(amax, format);
      each([&](float& value) {
        const auto scaled = static_cast<float>(value * scale);
        const float code = format.dtype == DType::e4m3 ? decode(encode<e4m3>(scaled))
                                                       : decode(encode<e5m2>(scaled));
        value = static_cast<float>(code / scale);
      });
    }
  }
  return x;
}

/// a b^T + bias in double precision of what the formats make of the operands.
std::vector<double> product(const Matrix& a, const Matrix& b, const GemmPlan& plan,
                            const std::vector<float>& bias) {
  Matrix left = cast_along_rows(a, plan.a);
  Matrix right = cast_along_rows(b, plan.b);
  std::vector<double> result;
  for (int64_t row = 0; row < left.rows; ++row) {
    for (int64_t column = 0; column < right.rows; ++column) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(column)];
      for (int64_t k = 0; k < left.columns; ++k) {
        sum += double{left.at(row, k)} * right.at(column, k);
      }
      result.push_back(sum);
    }
  }
  return result;
}

std::vector<float> decoded(const View& view) {
  std::vector<float> values;
  for (int64_t i = 0; i < view.count(); ++i) {
    values.push_back(decode(view.as<bf16>()[i]));
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

struct Layer {
  int64_t in, out;
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  Parameter* weight = store.add({.name = "w", .shape = {out, in}});
  Parameter* bias = store.add({.name = "b", .shape = {out}});
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  Linear linear;

  explicit Layer(const PrecisionPlan& plan, int64_t inputs = kIn, int64_t outputs = kOut)
      : in(inputs),
        out(outputs),
        linear(plan_linears(plan, {{"layer", inputs, outputs, 0, false}}).front(), weight, bias,
               scaling) {
    store.allocate(*device);
    scaling.allocate(*device);
    linear.weight().allocate(*device, store);
    saved.reserve(size_t{4} << 20);
    scratch.reserve(size_t{4} << 20);
  }
  StepContext context() {
    return {
        .device = device.get(), .stream = device->stream(), .saved = &saved, .scratch = &scratch};
  }
  View upload(const Matrix& matrix) {
    const View view = allocate(scratch, DType::bf16, {matrix.rows, matrix.columns});
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      view.as<bf16>()[i] = encode<bf16>(matrix.values[i]);
    }
    return view;
  }
};

/// Forward and backward of `passes` micro-batches against the reference.
void check_layer(const PrecisionPlan& plan, int64_t rows, int passes) {
  CAPTURE(plan.name, rows);
  Matrix x = {rows, kIn, values_of(rows * kIn, 1)};
  Matrix w = {kOut, kIn, values_of(kOut * kIn, 2)};
  Matrix dy = {rows, kOut, values_of(rows * kOut, 3)};
  const std::vector<float> bias = values_of(kOut, 4);
  Layer layer(plan);
  REQUIRE(layer.linear.plan().is_scaled());
  copy_from_host(*layer.device, layer.weight->value, w.values.data());
  copy_from_host(*layer.device, layer.bias->value, bias.data());
  layer.linear.weight().refresh(layer.context(), LinearWeight::Refresh::all);
  const View y = allocate(layer.scratch, DType::bf16, {rows, kOut});
  const View dx = allocate(layer.scratch, DType::bf16, {rows, kIn});
  const View input = layer.upload(x);
  const View gradient = layer.upload(dy);
  for (int pass = 0; pass < passes; ++pass) {
    Linear::Saved saved;
    layer.linear.forward(layer.context(), input, y, saved);
    CHECK(!saved.x.is_plain() == plan.wgrad.b.is_scaled());
    layer.linear.backward(layer.context(), gradient, dx, saved);
  }
  std::vector<double> dw = product(dy.transposed(), x.transposed(), plan.wgrad, {});
  for (double& value : dw) {
    value *= passes;  // gradients add up
  }
  CHECK(relative_error(decoded(y), product(x, w, plan.fprop, bias)) < kBf16);
  CHECK(relative_error(decoded(dx), product(dy, w.transposed(), plan.dgrad, {})) < kBf16);
  CHECK(relative_error(to_host_f32(*layer.device, layer.weight->gradient), dw) < kAccumulation);
}

}  // namespace

TEST_CASE("each GEMM of a layer multiplies what its formats make of its operands") {
  REQUIRE(test::fp8_plans_with_current_scales().size() > 5);
  for (const std::string& name : test::fp8_plans_with_current_scales()) {
    for (const int64_t rows : {1, 37, 130}) {
      check_layer(plan_named(name), rows, 1);
    }
  }
}

/// The values that one GEMM reads of a weight, [rows, columns] as its codes lie.
Matrix values_of(Layer& layer, const ops::GemmOperand& weight) {
  const Shape shape = weight.tensor.codes.shape;
  const View values = allocate(layer.scratch, DType::bf16, shape);
  ops::dequantize(layer.device->stream(), weight.tensor, values);
  return {shape.rows(), shape.back(), decoded(values)};
}

TEST_CASE("dgrad reads the codes of fprop where weights have squares of 32x32") {
  constexpr int64_t kRows = 37;
  PrecisionPlan plan = plan_named("te-mxfp8");
  plan.fprop.b.block = plan.dgrad.b.block = per::block_32x32;
  check_layer(plan, kRows, 2);
  Layer layer(plan);
  const Matrix w = {kOut, kIn, values_of(kOut * kIn, 2)};
  const Matrix dy = {kRows, kOut, values_of(kRows * kOut, 3)};
  copy_from_host(*layer.device, layer.weight->value, w.values.data());
  const StepContext context = layer.context();
  layer.linear.weight().refresh(context, LinearWeight::Refresh::all);
  const Matrix of_fprop =
      values_of(layer, layer.linear.weight().fprop_operand(context, {})).transposed();
  CHECK(values_of(layer, layer.linear.weight().dgrad_operand(context)).values == of_fprop.values);

  Linear::Saved saved;
  const View dx = allocate(layer.scratch, DType::bf16, {kRows, kIn});
  layer.linear.forward(context, layer.upload({kRows, kIn, values_of(kRows * kIn, 1)}),
                       allocate(layer.scratch, DType::bf16, {kRows, kOut}), saved);
  layer.linear.backward(context, layer.upload(dy), dx, saved);
  const View wanted = allocate(layer.scratch, DType::bf16, {kRows, kIn});
  ops::gemm(context.stream, {.a = {layer.upload(cast_along_rows(dy, plan.dgrad.a))},
                             .b = {layer.upload(of_fprop), true},
                             .c = wanted});
  CHECK(decoded(dx) == decoded(wanted));

  plan.fprop.b.block = plan.dgrad.b.block = per::block_1x32;  // codes of their own
  Layer other(plan);
  copy_from_host(*other.device, other.weight->value, w.values.data());
  other.linear.weight().refresh(other.context(), LinearWeight::Refresh::all);
  const ops::GemmOperand own = other.linear.weight().dgrad_operand(other.context());
  CHECK(values_of(other, own).values != of_fprop.values);
}

TEST_CASE("gradients of micro-batches add up") {
  for (const std::string& name : test::fp8_plans_with_current_scales()) {
    check_layer(plan_named(name), 131, 2);
  }
}

TEST_CASE("the operands of any GEMM may have other formats") {
  const TensorFormat plain_bf16 = plain(DType::bf16);
  for (const std::string& name : test::fp8_plans_with_current_scales()) {
    for (int gemm = 0; gemm < 3; ++gemm) {
      PrecisionPlan plan = plan_named(name);
      GemmPlan& changed = gemm == 0 ? plan.fprop : gemm == 1 ? plan.dgrad : plan.wgrad;
      changed = {plain_bf16, plain_bf16, false};
      check_layer(plan, 5, 1);
      changed = plan_named("torchao-rowwise").fprop;
      changed.a.dtype = DType::e5m2;
      check_layer(plan, 5, 1);
      changed.a.block = per::tensor;  // next to rows
      check_layer(plan, 5, 1);
    }
  }
}

/// Values of tests/golden/make_linears.py.
Matrix generated(int64_t rows, int64_t columns, uint32_t state) {
  Matrix matrix = {rows, columns, {}};
  for (int64_t i = 0; i < rows * columns; ++i) {
    state = state * 1664525U + 1013904223U;
    const uint32_t word = state >> 16;
    const uint32_t bits = (word & 0x807FU) | (120U + (word >> 7) % 8U) << 7;
    matrix.values.push_back(float_of(bits << 16));
  }
  return matrix;
}

/// The first 64 columns and, of 4096 rows, every 32nd.
std::vector<float> stored_part(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> part;
  for (int64_t row = 0; row < rows; row += rows >= 4096 ? 32 : 1) {
    const auto begin = values.begin() + row * columns;
    part.insert(part.end(), begin, begin + std::min<int64_t>(columns, 64));
  }
  return part;
}

/// 10 log10 of wanted^2 over the difference's.
double signal_to_noise(const std::vector<float>& got, std::ifstream& wanted) {
  double signal = 0;
  double noise = 0;
  for (const float value : got) {
    uint16_t bits = 0;
    wanted.read(reinterpret_cast<char*>(&bits), sizeof(bits));
    const double reference = float_of(uint32_t{bits} << 16);
    signal += reference * reference;
    noise += (value - reference) * (value - reference);
  }
  REQUIRE(wanted.good());
  return 10.0 * std::log10(signal / std::max(noise, 1e-300));
}

TEST_CASE("layers give what torchao's recipes give") {
  struct Sizes {
    int64_t rows, inputs, outputs;
  };
  std::ifstream file(FP8TRAIN_GOLDEN_DIR "/nn/torchao_linears.bin", std::ios::binary);
  for (const char* name : {"torchao-tensorwise", "torchao-rowwise", "torchao-rowwise-gw-hp"}) {
    for (const auto& [rows, inputs, outputs] :
         {Sizes{32, 48, 64}, {48, 4096, 32}, {4096, 64, 16}, {16, 32, 4096}}) {
      Layer layer(plan_named(name), inputs, outputs);
      const Matrix w = generated(outputs, inputs, 2);
      copy_from_host(*layer.device, layer.weight->value, w.values.data());
      layer.linear.weight().refresh(layer.context(), LinearWeight::Refresh::all);
      const View y = allocate(layer.scratch, DType::bf16, {rows, outputs});
      const View dx = allocate(layer.scratch, DType::bf16, {rows, inputs});
      const View x = layer.upload(generated(rows, inputs, 1));
      Linear::Saved saved;
      layer.linear.forward(layer.context(), x, y, saved);
      layer.linear.backward(layer.context(), layer.upload(generated(rows, outputs, 3)), dx, saved);
      // The order of sums before a result is rounded to bf16; torchao rounds dw too: 50 dB.
      const double of_y = signal_to_noise(stored_part(decoded(y), rows, outputs), file);
      const double of_dx = signal_to_noise(stored_part(decoded(dx), rows, inputs), file);
      const std::vector<float> dw = to_host_f32(*layer.device, layer.weight->gradient);
      const double of_dw = signal_to_noise(stored_part(dw, outputs, inputs), file);
      CAPTURE(name, rows, inputs, outputs, of_y, of_dx, of_dw);
      CHECK(of_y > 50.0);
      CHECK(of_dx > 50.0);
      CHECK(of_dw > 50.0);
    }
  }
}

TEST_CASE("operands that do not go together are refused") {
  PrecisionPlan plan = plan_named("te-blockwise");
  plan.fprop.a = plan.fprop.b;  // 128x128 on both sides
  CHECK_THROWS_AS(Layer(plan), InternalError);
  plan = plan_named("te-blockwise");
  plan.dgrad.b = plan_named("torchao-rowwise").dgrad.b;
  CHECK_THROWS_AS(Layer(plan), InternalError);
  plan = plan_named("te-blockwise");
  plan.fprop.a = plain(DType::bf16);
  CHECK_THROWS_AS(Layer(plan), InternalError);
  plan = plan_named("int8-qat");
  plan.dgrad.b.scale_type = ScaleType::pow2;  // other codes than fprop reads
  CHECK_THROWS_AS(Layer(plan), InternalError);
}

TEST_CASE("an infinity in any block of x, w or dy reaches the norm of the step, once") {
  for (const std::string& name : test::fp8_plans_with_current_scales()) {
    for (const char* role : {"x", "w", "dy"}) {
      CAPTURE(name, role);
      Layer layer(plan_named(name));
      const auto make = [&](const char* tensor, int64_t rows, int64_t columns) {
        Matrix matrix = {rows, columns, values_of(rows * columns, 5)};
        matrix.values[200] = std::string(role) == tensor ? INFINITY : 1.0F;
        return matrix;
      };
      const auto step = [&](bool bad) {
        layer.saved.release(0);
        layer.scratch.release(0);
        Matrix w = make(bad ? "w" : "", kOut, kIn);
        copy_from_host(*layer.device, layer.weight->value, w.values.data());
        layer.linear.weight().refresh(layer.context(), LinearWeight::Refresh::all);
        const View y = allocate(layer.scratch, DType::bf16, {32, kOut});
        const View dx = allocate(layer.scratch, DType::bf16, {32, kIn});
        Linear::Saved saved;
        layer.linear.forward(layer.context(), layer.upload(make(bad ? "x" : "", 32, kIn)), y,
                             saved);
        layer.linear.backward(layer.context(), layer.upload(make(bad ? "dy" : "", 32, kOut)), dx,
                              saved);
        double norm = 1.0;
        layer.scaling.update(layer.device->stream(), layer.scaling.due(0), &norm);
        return norm;
      };
      CHECK(step(false) == 1.0);
      CHECK(std::isnan(step(true)));
      CHECK(step(false) == 1.0);
    }
  }
}
