#include "ops/gemm/onednn.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/math.h"
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

/// Whether oneDNN has found the instructions; its names are those of x86-64, whose bits mean
/// nothing on other machines.
bool isa_has([[maybe_unused]] dnnl::cpu_isa isa) {
#if defined(__x86_64__)
  const unsigned wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
#else
  return false;
#endif
}

void use_threads([[maybe_unused]] int count) {
#if defined(_OPENMP)
  omp_set_num_threads(count);
#endif
}

}  // namespace

SingleThreadScope::SingleThreadScope() : threads_(max_threads()) {
  use_threads(1);
}
SingleThreadScope::~SingleThreadScope() {
  use_threads(threads_);
}

void for_each_by_one_thread(int64_t count, const std::function<void(int64_t)>& body) {
  if (count == 1) {
    const SingleThreadScope scope;
    return body(0);
  }
  std::atomic<bool> failed = false;  // no exception may leave the parallel loop
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic)
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
// 0.55 of the fp32 rate. On Arm oneDNN has bf16 products only with Arm's Compute Library, which
// distributions build it without.
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

// Units without VNNI add pairs of products in 16 bits, which saturate. AMX implies AVX512-VNNI;
// that of AVX2 alone has no blocked kernel in oneDNN 2.
bool uses_int8_units() {
  static const bool uses =
      isa_has(dnnl::cpu_isa::avx512_core_vnni) && !gemm_units_of_environment().has_value();
  return uses;
}

memory::data_type onednn_type(DType type) {
  return type == DType::bf16 ? memory::data_type::bf16
         : type == DType::i8 ? memory::data_type::s8
                             : memory::data_type::f32;
}

void Execution::add(int argument, const memory::desc& description) {
  memories_.emplace_back(description, onednn_engine(), nullptr);
  arguments_.push_back({argument, memories_.back().get()});
}

void Execution::run(const dnnl::primitive& primitive, std::initializer_list<const void*> data) {
  size_t i = 0;
  for (const void* pointer : data) {
    if (pointer != nullptr) {
      memories_[i++].set_data_handle(const_cast<void*>(pointer));
    }
  }
  const dnnl_status_t status = dnnl_primitive_execute(
      primitive.get(), stream_of_thread(), static_cast<int>(arguments_.size()), arguments_.data());
  check(status == dnnl_success, "oneDNN failed");
}

memory::desc row_major(int64_t rows, int64_t columns, memory::data_type type, int64_t stride) {
  return {{rows, columns}, type, memory::dims{stride, 1}};
}

memory::desc stored_matrix(int64_t rows, int64_t columns, memory::data_type type, bool transposed,
                           int64_t stride) {
  return {{rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

dnnl::matmul::primitive_desc describe_product(const memory::desc& a, const memory::desc& b,
                                              const memory::desc& c,
                                              const dnnl::primitive_attr& attributes,
                                              bool may_be_empty) {
#if DNNL_VERSION_MAJOR >= 3
  return {onednn_engine(), a, b, c, attributes, may_be_empty};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, onednn_engine(), may_be_empty};
#endif
}

bool is_blocked(const dnnl::matmul::primitive_desc& description) {
  return static_cast<bool>(description) && std::strncmp(description.impl_info_str(), "brg", 3) == 0;
}

const memory::desc* packed_layout(int64_t k, int64_t n, memory::data_type type) {
  constexpr int64_t kRows = 1024;  // the layout is the same for all extents M
  thread_local std::map<std::tuple<int64_t, int64_t, memory::data_type>, memory::desc> layouts;
  const auto [found, is_new] = layouts.try_emplace({k, n, type});
  if (is_new) {
    const auto description = describe_product(
        row_major(kRows, k, type, k), memory::desc({k, n}, type, memory::format_tag::any),
        row_major(kRows, n, memory::data_type::f32, n), {}, true);
    found->second = is_blocked(description) ? description.weights_desc() : memory::desc();
  }
  return found->second.get_size() == 0 ? nullptr : &found->second;
}

TiledProduct::TiledProduct(const TiledKey& key)
    : key_(key),
      row_tiles_(ceil_div(key.m, kTileRows)),
      column_tiles_(ceil_div(key.n, kTileColumns)),
      pieces_(ceil_div(key.k, key.depth)) {
  const SingleThreadScope scope;
  const auto extent = [](bool last, int64_t count, int64_t parts, int64_t size) {
    return last ? count - (parts - 1) * size : parts > 1 ? size : 0;
  };
  for (size_t which = 0; which < shapes_.size(); ++which) {
    const int64_t rows = extent((which & 1) != 0, key.m, row_tiles_, kTileRows);
    const int64_t columns = extent((which & 2) != 0, key.n, column_tiles_, kTileColumns);
    const int64_t depth = extent((which & 4) != 0, key.k, pieces_, key.depth);
    if (rows > 0 && columns > 0 && depth > 0) {
      shapes_[which] = make_shape(rows, columns, depth);
    }
  }
}

TiledProduct::Shape TiledProduct::make_shape(int64_t rows, int64_t columns, int64_t depth) {
  const auto a = row_major(rows, depth, key_.type, key_.k);
  const auto b = stored_matrix(depth, columns, key_.type, key_.b_transposed,
                               key_.b_transposed ? key_.k : key_.n);
  const auto c = row_major(rows, columns, memory::data_type::f32, columns);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto description = describe_product(a, b, c, attributes, false);
  scratchpad_stride_ =
      std::max(scratchpad_stride_, round_up(description.scratchpad_desc().get_size(), 256));
  Shape shape = {dnnl::matmul(description),
                 std::vector<Execution>(static_cast<size_t>(key_.threads))};
  for (Execution& execution : shape.executions) {
    execution.add(DNNL_ARG_SRC, a);
    execution.add(DNNL_ARG_WEIGHTS, b);
    execution.add(DNNL_ARG_DST, c);
    execution.add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  }
  return shape;
}

void TiledProduct::for_each_tile(const std::function<void(const ProductTile&)>& body) const {
  for_each_by_one_thread(row_tiles_ * column_tiles_, [&](int64_t index) {
    const int64_t row = index % row_tiles_ * kTileRows;
    const int64_t column = index / row_tiles_ * kTileColumns;
    body({thread_number(), row, column, std::min(kTileRows, key_.m - row),
          std::min(kTileColumns, key_.n - column)});
  });
}

void TiledProduct::run(const ProductTile& tile, int64_t piece, const void* a, const void* b,
                       float* product, void* scratchpads) {
  const bool last_row = tile.row + tile.rows == key_.m;
  const bool last_column = tile.column + tile.columns == key_.n;
  const bool last_piece = piece + 1 == pieces_;
  Shape& shape = shapes_[size_t{last_row} | size_t{last_column} << 1 | size_t{last_piece} << 2];
  const auto at = [&](const void* matrix, int64_t element) {
    const int64_t size = key_.type == memory::data_type::bf16 ? 2 : 4;
    return static_cast<const char*>(matrix) + element * size;
  };
  const int64_t first = piece * key_.depth;
  const int64_t b_at =
      key_.b_transposed ? tile.column * key_.k + first : first * key_.n + tile.column;
  const auto thread = static_cast<size_t>(tile.thread);
  shape.executions[thread].run(shape.primitive,
                               {at(a, tile.row * key_.k + first), at(b, b_at), product,
                                static_cast<char*>(scratchpads) + thread * scratchpad_stride_});
}

}  // namespace fp8train::ops::cpu

namespace fp8train::ops {

const char* cpu_gemm_engine(DType operand) {
  using cpu::isa_has;
  if (operand == DType::i8 && cpu::uses_int8_units()) {
    return isa_has(dnnl::cpu_isa::avx512_core_amx) ? "int8 (amx)" : "int8 (avx512_vnni)";
  }
  if (cpu::uses_bf16_units() && (is_byte_code(operand) || operand == DType::bf16)) {
    return isa_has(dnnl::cpu_isa::avx512_core_amx) ? "bf16 (amx)" : "bf16 (avx512_bf16)";
  }
  if (isa_has(dnnl::cpu_isa::avx512_core)) {
    return "fp32 (avx512)";
  }
#if defined(__x86_64__)
  return isa_has(dnnl::cpu_isa::avx2) ? "fp32 (avx2)" : "fp32 (sse4.1)";
#else
  return "fp32 (neon)";
#endif
}

}  // namespace fp8train::ops
