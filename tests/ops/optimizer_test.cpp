#include "ops/optimizer/optimizer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <string>

#include "base/error.h"
#include "ops/op_test_support.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// Reads tests/golden/ops/optimizer.txt (made by make_optimizer.py from torch).
class Golden {
 public:
  explicit Golden(const std::string& kind)
      : file_(FP8TRAIN_GOLDEN_DIR "/ops/optimizer.txt"), kind_(kind) {
    REQUIRE(file_.good());
  }
  /// Moves to the next case of the kind; what follows its name is read by number().
  bool next_case() {
    std::string word;
    while (file_ >> word) {
      if (word == kind_) {
        return true;
      }
    }
    return false;
  }
  double number() {
    double value = 0;
    file_ >> value;
    return value;
  }
  float bits() {
    std::string word;
    file_ >> word;
    const auto pattern = static_cast<uint32_t>(std::stoul(word, nullptr, 16));
    float value = 0;
    std::memcpy(&value, &pattern, sizeof(value));
    return value;
  }
  Array tensor(int64_t count) {
    Array result(DType::f32, {count});
    for (int64_t i = 0; i < count; ++i) {
      result.set(i, bits());
    }
    return result;
  }

 private:
  std::ifstream file_;
  std::string kind_;
};

/// Distance in units of the last place between two finite floats of the same sign, or their bits'
/// distance through zero.
int64_t ulps_between(float a, float b) {
  const auto ordered = [](float value) {
    int32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits < 0 ? int64_t{INT32_MIN} - bits : int64_t{bits};
  };
  return std::abs(ordered(a) - ordered(b));
}

int64_t worst_ulps(const Array& a, const Array& b) {
  int64_t worst = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    worst = std::max(worst, ulps_between(a.get(i), b.get(i)));
  }
  return worst;
}

/// Largest difference, in fp32 roundings (2^-24) of the largest element.
double worst_roundings(const Array& a, const Array& b) {
  double difference = 0.0;
  double largest = 0.0;
  for (int64_t i = 0; i < a.count(); ++i) {
    difference = std::max(difference, std::fabs(double{a.get(i)} - double{b.get(i)}));
    largest = std::max(largest, std::fabs(double{b.get(i)}));
  }
  return difference / largest * 0x1p24;
}

ops::StepControl fresh_control() {
  ops::StepControl control{};
  control.loss_scale = 1.0F;
  return control;
}

float measure_norm(Array& gradient, ops::StepControl& control, float max_norm,
                   const ops::LossScaling& scaling = {}) {
  Array scratch(DType::f32, {2 * ((gradient.count() + 4095) / 4096)});
  control.squared_norm = 0.0;
  ops::sum_of_squares(cpu_stream(), gradient, &control.squared_norm, scratch);
  ops::prepare_step(cpu_stream(), &control, max_norm, scaling);
  return control.gradient_norm;
}

}  // namespace

TEST_CASE("AdamW follows torch.optim.AdamW", "[ops]") {
  // Torch's vectorized lerp_ and addcdiv_ fuse a multiplication and an addition where ours round
  // twice, so that a moment that nearly cancels differs by roundings of its terms. Ours has the
  // corrections in the step and in eps: the update is off by a few roundings, which a weight of its
  // size shows.
  Golden golden("adamw");
  int cases = 0;
  for (; golden.next_case(); ++cases) {
    const auto n = static_cast<int64_t>(golden.number());
    const auto steps = static_cast<int>(golden.number());
    ops::AdamW call{};
    const double lr = golden.number();
    call.beta1 = golden.number();
    call.beta2 = golden.number();
    call.eps = golden.number();
    call.weight_decay = golden.number();
    const auto max_norm = static_cast<float>(golden.number());
    Array weight = golden.tensor(n);
    Array moment1(DType::f32, {n});
    Array moment2(DType::f32, {n});
    Array copy(DType::bf16, {n});
    ops::StepControl control = fresh_control();
    control.lr = lr;
    for (int step = 1; step <= steps; ++step) {
      Array gradient = golden.tensor(n);
      const float norm = golden.bits();
      REQUIRE(ulps_between(measure_norm(gradient, control, max_norm), norm) <= 1);
      call.weight = weight.view();
      call.gradient = gradient.view();
      call.moment1 = moment1.view();
      call.moment2 = moment2.view();
      call.copy = copy;
      ops::adamw(cpu_stream(), call, &control);
      REQUIRE(control.applied_steps == step);
      REQUIRE(worst_ulps(weight, golden.tensor(n)) <= 2);
      REQUIRE(worst_roundings(moment1, golden.tensor(n)) <= 3);
      REQUIRE(worst_ulps(moment2, golden.tensor(n)) <= 2);
      REQUIRE(copy.bytes() == Array(DType::bf16, {n}, weight.values()).bytes());
    }
  }
  CHECK(cases == 4);
}

TEST_CASE("SGD follows torch.optim.SGD with decoupled decay", "[ops]") {
  Golden golden("sgd");
  int cases = 0;
  for (; golden.next_case(); ++cases) {
    const auto n = static_cast<int64_t>(golden.number());
    const auto steps = static_cast<int>(golden.number());
    ops::Sgd call{};
    const double lr = golden.number();
    call.momentum_factor = golden.number();
    call.weight_decay = golden.number();
    Array weight = golden.tensor(n);
    Array momentum(DType::f32, {n});
    Array copy(DType::f16, {n});
    ops::StepControl control = fresh_control();
    control.lr = lr;
    for (int step = 0; step < steps; ++step) {
      Array gradient = golden.tensor(n);
      measure_norm(gradient, control, 0.0F);
      call.weight = weight;
      call.gradient = gradient;
      call.momentum = call.momentum_factor == 0.0 ? View() : momentum.view();
      call.copy = copy;
      ops::sgd(cpu_stream(), call, &control);
      REQUIRE(worst_roundings(weight, golden.tensor(n)) <= 2);
      REQUIRE(copy.bytes() == Array(DType::f16, {n}, weight.values()).bytes());
    }
  }
  CHECK(cases == 2);
}

TEST_CASE("the loss scale follows torch.amp.GradScaler", "[ops]") {
  Golden golden("scaler");
  int cases = 0;
  for (; golden.next_case(); ++cases) {
    const auto steps = static_cast<int>(golden.number());
    ops::StepControl control = fresh_control();
    control.loss_scale = static_cast<float>(golden.number());
    ops::LossScaling scaling;
    scaling.dynamic = true;
    scaling.growth_interval = static_cast<int32_t>(golden.number());
    int64_t skipped = 0;
    int64_t in_a_row = 0;
    for (int step = 0; step < steps; ++step) {
      const bool overflow = golden.number() != 0;
      skipped += overflow ? 1 : 0;
      in_a_row = overflow ? in_a_row + 1 : 0;
      control.squared_norm = overflow ? INFINITY : 4.0;
      ops::prepare_step(cpu_stream(), &control, 0.0F, scaling);
      REQUIRE(control.skip == (overflow ? 1 : 0));
      REQUIRE(control.loss_scale == golden.bits());
      REQUIRE(control.skipped_steps == skipped);
      REQUIRE(control.skipped_in_a_row == in_a_row);
      REQUIRE(control.applied_steps == step + 1 - skipped);
    }
    REQUIRE(skipped > 0);
  }
  CHECK(cases == 2);
}

TEST_CASE("the gradient factor removes the loss scale and clips the norm without it", "[ops]") {
  ops::StepControl control = fresh_control();
  control.loss_scale = 1024.0F;
  control.squared_norm = std::pow(1024.0 * 3.0, 2);
  ops::prepare_step(cpu_stream(), &control, 4.0F, {});
  CHECK(control.gradient_norm == 3.0F);
  CHECK(control.gradient_factor == 1.0F / 1024.0F);
  ops::prepare_step(cpu_stream(), &control, 1.5F, {});
  CHECK(control.gradient_factor == Approx(0.5 / 1024.0).epsilon(1e-6));
  CHECK(control.gradient_factor < 0.5F / 1024.0F);  // the 1e-6 of clip_grad_norm_
  ops::prepare_step(cpu_stream(), &control, 0.0F, {});
  CHECK(control.gradient_factor == 1.0F / 1024.0F);
  CHECK(control.loss_scale == 1024.0F);
  CHECK(control.applied_steps == 3);
}

TEST_CASE("a step with a non-finite gradient touches nothing", "[ops]") {
  const int64_t n = 6001;
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Array weight(DType::f32, {n}, random_values(n, 51));
    Array gradient(DType::f32, {n}, random_values(n, 52));
    Array moment1(DType::f32, {n}, random_values(n, 53));
    Array moment2(DType::f32, {n}, std::vector<float>(n, 0.5F));
    Array copy(DType::bf16, {n});
    gradient.set(n - 1, bad);
    const std::vector<uint8_t> before[] = {weight.bytes(), moment1.bytes(), moment2.bytes(),
                                           copy.bytes()};
    ops::StepControl control = fresh_control();
    control.lr = 1e-3;
    CHECK_FALSE(std::isfinite(measure_norm(gradient, control, 1.0F)));
    CHECK(control.skip == 1);
    CHECK(control.skipped_steps == 1);
    CHECK(control.applied_steps == 0);
    CHECK(control.gradient_factor == 0.0F);
    ops::adamw(cpu_stream(),
               {weight.view(), gradient.view(), moment1.view(), moment2.view(), copy, 0.9, 0.99,
                1e-8, 0.1},
               &control);
    ops::sgd(cpu_stream(), {weight, gradient, moment1, copy, 0.9, 0.1}, &control);
    CHECK(weight.bytes() == before[0]);
    CHECK(moment1.bytes() == before[1]);
    CHECK(moment2.bytes() == before[2]);
    CHECK(copy.bytes() == before[3]);
  }
}

TEST_CASE("sum_of_squares adds to its accumulator, in fp64", "[ops]") {
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t count :
         {int64_t{1}, int64_t{31}, int64_t{4096}, int64_t{30001}, int64_t{4096} * 4097 + 3}) {
      if (count > 1000000 && type.dtype != DType::bf16) {
        continue;  // more than a group of chunks: once
      }
      Array x(type.dtype, {count}, random_values(count, 54));
      long double exact = 2.0;
      for (int64_t i = 0; i < count; ++i) {
        exact += double{x.get(i)} * double{x.get(i)};
      }
      const auto expected = static_cast<double>(exact);
      Array scratch(DType::f32, {2 * ((count + 4095) / 4096)});
      double sum = 2.0;
      ops::sum_of_squares(cpu_stream(), x, &sum, scratch);
      REQUIRE(sum == Approx(expected).epsilon(1e-13));
      REQUIRE(same_everywhere([&](const ops::OpTable& table) {
        double total = 0.0;
        table.sum_of_squares(cpu_stream(), x, &total, scratch, DType::f32);
        Bits bits;
        bits.add_value(total);
        return bits;
      }));
    }
  }
}

TEST_CASE("optimizer steps give the same bits at every level and thread count", "[ops]") {
  const int64_t n = 40007;
  Array gradient(DType::f32, {n}, random_values(n, 55));
  REQUIRE(same_everywhere([&](const ops::OpTable& table) {
    Array weight(DType::f32, {n}, random_values(n, 56));
    Array moment1(DType::f32, {n});
    Array moment2(DType::f32, {n});
    Array copy(DType::f16, {n});
    ops::StepControl control = fresh_control();
    control.lr = 1e-3;
    for (int step = 0; step < 3; ++step) {
      control.squared_norm = 9.0;
      table.prepare_step(cpu_stream(), &control, 1.0F, {});
      table.adamw(cpu_stream(),
                  {weight.view(), gradient.view(), moment1.view(), moment2.view(), copy, 0.9, 0.95,
                   1e-8, 0.1},
                  &control);
      table.sgd(cpu_stream(), {weight, gradient, moment1, copy, 0.9, 0.1}, &control);
    }
    Bits bits;
    for (const Array* array : {&weight, &moment1, &moment2, &copy}) {
      bits.add(*array);
    }
    return bits;
  }));
}
