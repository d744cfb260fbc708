#include "ops/gemm/onednn.h"

#include <atomic>
#include <exception>
#include <optional>

#include "base/error.h"
#include "numeric/cpu_isa.h"
#include "ops/gemm/gemm_operands_cpu.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace fp8train::ops::cpu {
namespace {

using dnnl::memory;

dnnl_stream_t stream_of_thread() {
  thread_local const dnnl::stream instance(onednn_engine());
  return instance.get();
}

bool isa_has(dnnl::cpu_isa isa) {
  const unsigned wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

#if defined(_OPENMP)
int most_threads() {
  return omp_get_max_threads();
}
void use_threads(int count) {
  omp_set_num_threads(count);
}
#else
int most_threads() {
  return 1;
}
void use_threads(int /*count*/) {}
#endif

}  // namespace

dnnl::engine& onednn_engine() {
  static dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

int max_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

int thread_number() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// AMX is faster than fp32; AVX512-BF16 doubles the rate on AMD's cores, but on Intel's it has about
// 0.55 of the fp32 rate.
bool uses_bf16_units() {
  static const bool uses = [] {
    if (!isa_has(dnnl::cpu_isa::avx512_core_bf16)) {
      return false;
    }
    const std::optional<DType> wanted = gemm_units_of_environment();
    return wanted ? *wanted == DType::bf16
                  : isa_has(dnnl::cpu_isa::avx512_core_amx) || !cpu_is_intel();
  }();
  return uses;
}

void Execution::add(int argument, const memory::desc& description) {
  memories_.emplace_back(description, onednn_engine(), nullptr);
  arguments_.push_back({argument, memories_.back().get()});
}

void Execution::run(const dnnl::matmul& primitive, std::initializer_list<const void*> data) {
  size_t i = 0;
  for (const void* pointer : data) {
    if (pointer != nullptr) {
      memories_[i++].set_data_handle(const_cast<void*>(pointer));
    }
  }
  const dnnl_status_t status = dnnl_primitive_execute(
      primitive.get(), stream_of_thread(), static_cast<int>(arguments_.size()), arguments_.data());
  check(status == dnnl_success, "oneDNN matmul failed");
}

memory::desc row_major(int64_t rows, int64_t columns, memory::data_type type, int64_t stride) {
  return {{rows, columns}, type, memory::dims{stride, 1}};
}

memory::desc stored_matrix(int64_t rows, int64_t columns, memory::data_type type, bool transposed,
                           int64_t stride) {
  return {{rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

SingleThreadScope::SingleThreadScope() : threads_(most_threads()) {
  use_threads(1);
}
SingleThreadScope::~SingleThreadScope() {
  use_threads(threads_);
}

size_t TileShapeHash::operator()(const TileShape& shape) const {
  size_t hash = static_cast<size_t>(shape.threads);
  for (const int64_t part : {shape.rows, shape.columns, shape.depth, shape.a_stride, shape.b_stride,
                             static_cast<int64_t>(shape.type) << 1 | shape.b_transposed}) {
    mix(hash, static_cast<uint64_t>(part));
  }
  return hash;
}

TileProduct::TileProduct(const TileShape& shape) {
  const SingleThreadScope scope;
  const auto a = row_major(shape.rows, shape.depth, shape.type, shape.a_stride);
  const auto b =
      stored_matrix(shape.depth, shape.columns, shape.type, shape.b_transposed, shape.b_stride);
  const auto c = row_major(shape.rows, shape.columns, memory::data_type::f32, shape.columns);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes,
                                                 onednn_engine());
  primitive_ = dnnl::matmul(description);
  scratchpad_bytes_ = description.scratchpad_desc().get_size();
  executions_.resize(static_cast<size_t>(shape.threads));
  for (Execution& execution : executions_) {
    execution.add(DNNL_ARG_SRC, a);
    execution.add(DNNL_ARG_WEIGHTS, b);
    execution.add(DNNL_ARG_DST, c);
    execution.add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  }
}

void for_each_tile(int64_t count, const std::function<void(int64_t)>& body) {
  if (count == 1) {
    const SingleThreadScope scope;
    return body(0);
  }
  std::atomic<bool> failed = false;  // no exception may leave the parallel loop
#if defined(_OPENMP)
#pragma omp parallel for schedule(static)
#endif
  for (int64_t index = 0; index < count; ++index) {
    try {
      body(index);
    } catch (const std::exception&) {
      failed = true;
    }
  }
  check(!failed, "oneDNN matmul failed");
}

}  // namespace fp8train::ops::cpu

namespace fp8train::ops {

const char* cpu_gemm_engine(DType operand) {
  using cpu::isa_has;
  if (cpu::uses_bf16_units() && (is_fp8(operand) || operand == DType::bf16)) {
    return isa_has(dnnl::cpu_isa::avx512_core_amx) ? "bf16 (amx)" : "bf16 (avx512_bf16)";
  }
  if (isa_has(dnnl::cpu_isa::avx512_core)) {
    return "fp32 (avx512)";
  }
  return isa_has(dnnl::cpu_isa::avx2) ? "fp32 (avx2)" : "fp32 (sse4.1)";
}

}  // namespace fp8train::ops
