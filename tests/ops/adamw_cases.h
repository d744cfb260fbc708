#pragma once
// AdamW calls on arrays of a test, for the tests on the cpu and on cuda.

#include "numeric/scale.h"
#include "ops/op_test_support.h"
#include "ops/optimizer.h"

namespace fp8train::test {

/// What is wanted of the cast of a new weight.
struct WeightCast {
  bool codes, transposed, statistics;
  DType type = DType::e4m3;
};

inline constexpr WeightCast kWeightCasts[] = {{false, false, false},
                                              {true, false, false},
                                              {false, true, false},
                                              {true, true, false, DType::e5m2},
                                              {true, true, true}};

inline ops::StepControl adamw_control(bool skip, int64_t steps = 1234) {
  ops::StepControl control{};
  control.lr = 3e-4;
  control.gradient_factor = 0.37F;
  control.loss_scale = 1.0F;
  control.skip = skip ? 1 : 0;
  control.applied_steps = steps;
  return control;
}

}  // namespace fp8train::test
