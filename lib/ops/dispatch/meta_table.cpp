#include "ops/dispatch/meta_operations.h"

namespace fp8train::ops::meta {
namespace {

constexpr OpTable kTable = {
#define FP8TRAIN_OPERATION(name) .name = &(name),
#include "ops/dispatch/operations.def"
};

}  // namespace

const OpTable& table() {
  return kTable;
}

}  // namespace fp8train::ops::meta
