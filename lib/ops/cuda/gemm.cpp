#include "base/error.h"
#include "device/device.h"
#include "ops/cuda/cuda_table.h"
#include "ops/cuda/gemm_plans.h"

namespace fp8train::ops::cuda {
namespace {

void gemm(Stream stream, const Gemm& call) {
  check(is_fp8(call.a.matrix.dtype) || (call.a.scale_inv == nullptr && call.b.scale_inv == nullptr),
        "gemm: on cuda only FP8 operands have scales");
  const auto operand = [](const GemmOperand& from) {
    return ProductOperand{from.matrix, from.transposed, Granularity::tensor, from.scale_inv};
  };
  CudaContext& context = cuda_context(stream);
  gemm_plans(context).run(context, {.a = operand(call.a),
                                    .b = operand(call.b),
                                    .c = call.c,
                                    .beta = call.beta,
                                    .fast_accumulate = call.fast_accumulate});
  if (!call.bias.empty()) {
    op_table(stream).add_bias(stream, call.c, call.bias);
  }
}

}  // namespace

void tune_gemms(Device& device, const std::string& folder) {
  CudaContext& context = cuda_context(device.stream());
  gemm_plans(context).tune(context, folder);
}

void fill_gemm(OpTable& table) {
  table.gemm = gemm;
}

}  // namespace fp8train::ops::cuda
