// Gradient norms and optimizer steps: exact, since arithmetic and order of sums are the cpu's.

#include "ops/optimizer/optimizer.h"

#include <catch2/catch.hpp>
#include <tuple>

#include "numeric/with_type.h"
#include "ops/cuda/cuda_test_support.h"
#include "ops/storage/storage.h"

namespace fp8train::test {
namespace {

constexpr int64_t kCounts[] = {1, 15, 16, 130, 4096, 4099, 3 * 4096 + 777};

bool same_value(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

TEST_CASE("sum_of_squares has the cpu's bits", "[cuda][optimizer]") {
  for (const DType type : FloatTypes::kTypes) {
    for (const int64_t count : kCounts) {
      for (const int64_t offset : {0, 1, 4}) {
        for (const bool adversarial : {false, true}) {
          INFO(name_of(type) << ", " << count << " from " << offset);
          const Array x(type, {count},
                        adversarial ? adversarial_values(count, 5, true) : random_values(count, 5));
          const auto run = [&](Side& side) {
            double* accumulator = side.put_value(0.1);
            const View scratch = side.space(DType::f32, {(count + 4095) / 4096 * 2});
            ops::sum_of_squares(side.stream(), side.put(x, offset), accumulator, scratch);
            return side.get_value(accumulator);
          };
          CHECK(on_cuda(run) == on_cpu(run));
        }
      }
    }
  }
}

TEST_CASE("the sums of a group of chunks and of groups have the cpu's bits", "[cuda][optimizer]") {
  for (const int64_t chunks : {int64_t{700}, int64_t{4097}}) {  // 4096 chunks are a group
    const int64_t count = chunks * 4096 - 4091;
    const Array x(DType::bf16, {count}, random_values(count, 9));
    const auto run = [&](Side& side) {
      double* accumulator = side.put_value(0.0);
      ops::sum_of_squares(side.stream(), side.put(x), accumulator,
                          side.space(DType::f32, {2 * chunks}));
      return side.get_value(accumulator);
    };
    CHECK(on_cuda(run) == on_cpu(run));
  }
}

TEST_CASE("an fp32 gradient that is read as another type is what that type stores",
          "[cuda][optimizer]") {
  for (const bool finite : {false, true}) {
    const DType type = DType::bf16;
    const int64_t count = 4096 + 777;
    const Array x(DType::f32, {count}, adversarial_values(count, 5, finite));
    const auto sum = [&](Side& side, bool read_as) {
      View gradient = side.put(x);
      if (!read_as) {
        const View stored = side.space(type, {count});
        ops::store(side.stream(), {.x = gradient, .to = stored});
        ops::read_stored(side.stream(), stored, gradient);
      }
      double* accumulator = side.put_value(0.0);
      ops::sum_of_squares(side.stream(), gradient, accumulator, side.space(DType::f32, {4}),
                          read_as ? type : DType::f32);
      return side.get_value(accumulator);
    };
    const double want = on_cpu([&](Side& side) { return sum(side, false); });
    INFO("finite " << finite);
    CHECK(same_value(on_cpu([&](Side& side) { return sum(side, true); }), want));
    CHECK(same_value(on_cuda([&](Side& side) { return sum(side, true); }), want));
    CHECK(same_value(on_cuda([&](Side& side) { return sum(side, false); }), want));
    CHECK(std::isfinite(want) == finite);
  }
}

TEST_CASE("sum_of_squares shows a NaN or infinity anywhere", "[cuda][optimizer]") {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const int64_t at : {0, 4095, 4096, 5000, 5002}) {
      Array x(DType::f32, {5003}, random_values(5003, 1));
      x.set(at, bad);
      const double sum = on_cuda([&](Side& side) {
        double* accumulator = side.put_value(0.0);
        ops::sum_of_squares(side.stream(), side.put(x), accumulator, side.space(DType::f32, {4}));
        return side.get_value(accumulator);
      });
      CHECK_FALSE(std::isfinite(sum));
    }
  }
}

ops::StepControl control_of(double squared_norm, float loss_scale) {
  ops::StepControl control{};
  control.squared_norm = squared_norm;
  control.loss_scale = loss_scale;
  control.good_steps = 1;
  control.skipped_steps = 3;
  control.applied_steps = 41;
  return control;
}

/// Returns all members but the norms. It does not compile with a further member.
auto members_but_norm(const ops::StepControl& control) {
  const auto& [squared_norm, lr, factor, norm, loss_scale, skip, good_steps, skipped_steps,
               applied_steps, skipped_in_a_row] = control;
  return std::tuple(lr, factor, loss_scale, skip, good_steps, skipped_steps, applied_steps,
                    skipped_in_a_row);
}

/// Whether two devices have decided the same. The norm of both may be NaN.
bool same_control(const ops::StepControl& a, const ops::StepControl& b) {
  const bool same_norm = std::memcmp(&a.gradient_norm, &b.gradient_norm, sizeof(float)) == 0 ||
                         (std::isnan(a.gradient_norm) && std::isnan(b.gradient_norm));
  return same_norm && members_but_norm(a) == members_but_norm(b);
}

TEST_CASE("prepare_step decides as the cpu does", "[cuda][optimizer]") {
  for (const double squared_norm : {0.0, 7.3, 1e12, double{INFINITY}, double{NAN}}) {
    for (const float max_norm : {0.0F, 1.0F}) {
      for (const bool dynamic : {false, true}) {
        const auto run = [&](Side& side) {
          ops::StepControl* control = side.put_value(control_of(squared_norm, 1024.0F));
          const ops::LossScaling scaling = {.dynamic = dynamic, .growth_interval = 2};
          ops::prepare_step(side.stream(), control, max_norm, scaling);
          return side.get_value(control);
        };
        INFO(squared_norm << ", " << max_norm << ", " << dynamic);
        CHECK(same_control(on_cuda(run), on_cpu(run)));
      }
    }
  }
}

struct Result {
  Array weight, moment1, moment2, copy;
};

bool same_result(const Result& a, const Result& b) {
  return same_values(a.weight, b.weight) && same_values(a.moment1, b.moment1) &&
         same_values(a.moment2, b.moment2) && same_values(a.copy, b.copy);
}

ops::StepControl ready_control(bool skip) {
  ops::StepControl control{};
  control.lr = 3e-4;
  control.gradient_factor = 0.37F;
  control.loss_scale = 1.0F;
  control.skip = skip ? 1 : 0;
  control.applied_steps = 1234;
  return control;
}

/// Values of a tensor of a test of the optimizers.
Array state(int64_t count, uint32_t seed, bool non_negative = false) {
  std::vector<float> values = adversarial_values(count, seed);
  if (non_negative) {
    for (float& value : values) {
      value = std::abs(value);
    }
  }
  return Array(DType::f32, {count}, values);
}

TEST_CASE("adamw is exact, with and without a copy", "[cuda][optimizer]") {
  for (const int64_t count : {int64_t{1}, int64_t{6}, int64_t{1024}, int64_t{4099}}) {
    for (const int64_t offset : {0, 1}) {
      for (const int copy_kind : {0, 1, 2}) {
        for (const bool skip : {false, true}) {
          INFO(count << " from " << offset << ", copy " << copy_kind << ", skip " << skip);
          const auto run = [&](Side& side) {
            const View weight = side.put(state(count, 1), offset);
            const View m = side.put(state(count, 2), offset);
            const View v = side.put(state(count, 3, true), offset);
            const DType copy_type = copy_kind == 1 ? DType::bf16 : DType::f16;
            const View copy = side.put(Array(copy_type, {count}), offset);
            const ops::AdamW call = {.weight = weight,
                                     .gradient = side.put(state(count, 4), offset),
                                     .moment1 = m,
                                     .moment2 = v,
                                     .copy = copy_kind == 0 ? View() : copy,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1};
            ops::adamw(side.stream(), call, side.put_value(ready_control(skip)));
            return Result{side.get(weight), side.get(m), side.get(v), side.get(copy)};
          };
          const Result cuda = on_cuda(run);
          CHECK(same_result(cuda, on_cpu(run)));
          CHECK(same_values(cuda.weight, state(count, 1)) == skip);
        }
      }
    }
  }
}

TEST_CASE("sgd is exact, with and without momentum", "[cuda][optimizer][small]") {
  for (const int64_t count : {int64_t{1}, int64_t{6}, int64_t{1024}, int64_t{4099}}) {
    for (const int64_t offset : {0, 1}) {
      for (const int copy_kind : {0, 1, 2}) {
        for (const bool with_momentum : {false, true}) {
          for (const bool skip : {false, true}) {
            INFO(count << " from " << offset << ", copy " << copy_kind << with_momentum << skip);
            const auto run = [&](Side& side) {
              const View weight = side.put(state(count, 1), offset);
              const View momentum = side.put(state(count, 2), offset);
              const DType copy_type = copy_kind == 1 ? DType::bf16 : DType::f16;
              const View copy = side.put(Array(copy_type, {count}), offset);
              const ops::Sgd call = {.weight = weight,
                                     .gradient = side.put(state(count, 4), offset),
                                     .momentum = with_momentum ? momentum : View(),
                                     .copy = copy_kind == 0 ? View() : copy,
                                     .momentum_factor = 0.9,
                                     .weight_decay = 0.1};
              ops::sgd(side.stream(), call, side.put_value(ready_control(skip)));
              return Result{side.get(weight), side.get(momentum), Array(), side.get(copy)};
            };
            const Result cuda = on_cuda(run);
            CHECK(same_result(cuda, on_cpu(run)));
            CHECK(same_values(cuda.weight, state(count, 1)) == skip);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fp8train::test
