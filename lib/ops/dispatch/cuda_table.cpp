#include "ops/dispatch/cuda_operations.h"

namespace fp8train::ops::cuda {
namespace {

constexpr OpTable kTable = {
#define FP8TRAIN_OPERATION(name) .name = &(name),
#include "ops/dispatch/operations.def"
};

}  // namespace

const OpTable& table() {
  return kTable;
}

}  // namespace fp8train::ops::cuda
