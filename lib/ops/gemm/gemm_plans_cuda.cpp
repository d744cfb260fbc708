#include "ops/gemm/gemm_plans_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/math.h"
#include "device/device.h"
#include "ops/gemm/cublaslt_plan.h"
#include "ops/gemm/gemm_support.h"

namespace fp8train::ops::cuda {
namespace {

constexpr uint32_t kQuestionAlignment = 16;

/// The largest power of two up to 256 that divides the address: what an algorithm may rely on.
uint32_t alignment_of(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

PlanKey key_of(const Product& call) {
  return {.m = call.c.shape[0],
          .n = call.c.shape[1],
          .k = call.a.matrix.shape[call.a.transposed ? 0 : 1],
          .a = call.a.matrix.dtype,
          .b = call.b.matrix.dtype,
          .c = call.c.dtype,
          .a_block = call.a.block,
          .b_block = call.b.block,
          .a_transposed = call.a.transposed,
          .b_transposed = call.b.transposed,
          .a_scaled = call.a.scales != nullptr,
          .b_scaled = call.b.scales != nullptr,
          .add = call.beta != 0.0F,
          .biased = !call.bias.empty(),
          .factors_on_device = call.factors != nullptr,
          .fast_accumulate = call.fast_accumulate,
          .a_alignment = alignment_of(call.a.matrix.data),
          .b_alignment = alignment_of(call.b.matrix.data),
          .c_alignment = alignment_of(call.c.data)};
}

/// The key of the question whether the library takes a product of codes: pointers are as little
/// aligned as they may be, and what c holds and a bias are left out.
PlanKey question_of(const Product& call) {
  PlanKey key = key_of(call);
  key.a_scaled = key.b_scaled = true;
  key.add = key.biased = false;
  key.factors_on_device = call.a.block == per::block_1x16;
  key.a_alignment = key.b_alignment = key.c_alignment = kQuestionAlignment;
  return key;
}

/// A product of codes reads both operands along K, 16 bytes at a time. gemm_support() has said that
/// their types go together.
void check_codes(const PlanKey& key) {
  check(is_code_type(key.b) && (key.a == DType::e2m1) == (key.b == DType::e2m1),
        "gemm: on cuda both operands are FP8, or e2m1, or neither");
  check(!key.a_transposed && key.b_transposed,
        "gemm: FP8 operands on cuda lie with K contiguous; use the transposed codes");
  check(bytes_of_rows(key.a, 1, key.k) % 16 == 0,
        "gemm: on cuda rows of codes are multiples of 16 bytes");
}

}  // namespace

GemmPlans::GemmPlans(const CudaContext& context) : context_(&context) {
  check_status(cublaslt().create(&handle_), "starting cuBLASLt");
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  cublaslt().destroy(handle_);
}

void GemmPlans::run(const Product& call) {
  const PlanKey key = key_of(call);
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan == nullptr) {
    plan = make_plan(call, key);
  }
  check_status(plan->run(handle_, *context_, call), "cublasLtMatmul");
}

bool GemmPlans::run_codes(const Product& call) {
  const PlanKey question = question_of(call);
  const auto answer = answers_.find(question);
  if (answer != answers_.end() && !answer->second) {
    return false;
  }
  try {
    run(call);
  } catch (const CublasError& error) {
    if (!error.is_refusal()) {
      throw;
    }
    cudaGetLastError();  // the library may leave an error of its own
    refuse(question, error);
    return false;
  }
  return true;
}

bool GemmPlans::run_biased(const Product& call) {
  const PlanKey key = key_of(call);
  if (const auto known = plans_.find(key); known != plans_.end()) {
    if (known->second != nullptr) {
      run(call);
    }
    return known->second != nullptr;
  }
  try {
    run(call);
    return true;
  } catch (const DeviceError& error) {
    // The library may suggest what it then refuses: only a product that has run counts.
    plans_[key] = nullptr;
    log_warning(std::string("a bias is added by a kernel of its own: ") + error.what());
    return false;
  }
}

bool GemmPlans::takes(const Fp8Product& product, int64_t m, int64_t n, int64_t k) {
  const auto pairs = block_pairs();
  const auto pair = std::ranges::find(pairs, product.scales, &BlockPair::scales);
  // Any memory serves: nothing is read.
  char* const memory = static_cast<char*>(context_->workspace) + kQuestionAlignment;
  const Product call = {.a = {{memory, product.a, {m, k}}, false, pair->a, memory},
                        .b = {{memory, product.b, {n, k}}, true, pair->b, memory},
                        .c = {memory, product.c, {m, n}},
                        .beta = 0.0F,
                        .fast_accumulate = product.fast_accumulate};
  const PlanKey question = question_of(call);
  const auto [answer, is_new] = answers_.try_emplace(question, true);
  if (is_new) {
    try {
      const Plan asked(handle_, *context_, call, question, nullptr);
    } catch (const CublasError& error) {
      if (!error.is_refusal()) {
        answers_.erase(answer);
        throw;
      }
      refuse(question, error);
    }
  }
  return answer->second;
}

void GemmPlans::refuse(const PlanKey& question, const CublasError& error) {
  answers_[question] = false;
  PlanKey kind = question;
  kind.m = 0;
  if (warned_.insert(kind).second) {
    log_warning(fmt::format(
        "{}; {} x {} x {} with {} x {} scales{}, and other shapes that are refused, run {}from "
        "dequantized operands",
        error.what(), question.m, question.n, question.k, name_of(question.a_block),
        name_of(question.b_block), question.fast_accumulate ? " and fast accumulation" : "",
        question.fast_accumulate ? "without it or " : ""));
  }
}

View GemmPlans::unplanned_scratch(size_t bytes) {
  if (unplanned_.empty() || unplanned_.back().bytes() < bytes) {
    log_warning(fmt::format(
        "a product from dequantized operands takes {} KiB of GPU memory that no plan has",
        ceil_div(bytes, size_t{1024})));
    unplanned_.emplace_back(*context_->owner, bytes, MemoryCategory::workspace);
  }
  return {unplanned_.back().data(), DType::u8, {static_cast<int64_t>(bytes)}};
}

std::unique_ptr<Plan> GemmPlans::make_plan(const Product& call, const PlanKey& key) {
  if (is_code_type(key.a) || is_code_type(key.b)) {
    check_codes(key);
  }
  return std::make_unique<Plan>(handle_, *context_, call, key, tuning_ ? &*tuning_ : nullptr);
}

GemmPlans& gemm_plans(CudaContext& context) {
  if (context.gemm == nullptr) {
    context.gemm = std::make_unique<GemmPlans>(context);
  }
  return static_cast<GemmPlans&>(*context.gemm);
}

}  // namespace fp8train::ops::cuda
