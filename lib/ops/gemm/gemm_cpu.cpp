// The product itself is oneDNN's. Two ways lead through it, so that the bits depend on shapes and
// machine, never on the number of threads:
//
// - one primitive for the whole product where oneDNN has its blocked kernel ("brg"), with scale,
//   sum and bias as post-ops. op(a) is row-major then: for a transposed operand oneDNN splits the
//   sum over K by the number of threads;
// - tiles of fixed size elsewhere, each by one thread: without AVX-512, and for products of int8
//   codes whose K is too large for one exact sum.

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "ops/dispatch/cpu_operations.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm/onednn.h"

namespace fp8train::ops::cpu {
namespace {

using dnnl::memory;

/// The key of a WholeProduct: a [m, k] times op(b) [k, n], and the steps after it.
struct ProductKey {
  int64_t m, n, k;
  memory::data_type operands;
  bool b_transposed, bf16_result, add, scaled, biased, packed;
  int threads;

  // clang-tidy takes the 0 that the comparison compares with for a null pointer.
  auto operator<=>(const ProductKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// op(b) [k, n]; empty where it should be packed and there is no layout for it.
memory::desc operand_b(const ProductKey& key) {
  if (!key.packed) {
    return stored_matrix(key.k, key.n, key.operands, key.b_transposed,
                         key.b_transposed ? key.k : key.n);
  }
  const memory::desc* const layout = packed_layout(key.k, key.n, key.operands);
  return layout == nullptr ? memory::desc() : *layout;
}

/// The whole product in one primitive, with its post-ops; `valid` only where oneDNN has its blocked
/// kernel for it.
struct WholeProduct {
  explicit WholeProduct(const ProductKey& key) {
    std::optional<SingleThreadScope> scope;
    if (key.threads == 1) {
      scope.emplace();
    }
    const auto a = row_major(key.m, key.k, key.operands, key.k);
    const auto b = operand_b(key);
    const auto c = row_major(
        key.m, key.n, key.bf16_result ? memory::data_type::bf16 : memory::data_type::f32, key.n);
    const auto scale = row_major(1, 1, memory::data_type::f32, 1);
    const auto bias = row_major(1, key.n, memory::data_type::f32, key.n);
    dnnl::post_ops post_ops;
    int position = 0;
    int scale_argument = 0;
    int bias_argument = 0;
    if (key.scaled) {
      post_ops.append_binary(dnnl::algorithm::binary_mul, scale);
      scale_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(position++) | DNNL_ARG_SRC_1;
    }
    if (key.add) {
      post_ops.append_sum(1.0F);
      ++position;
    }
    if (key.biased) {
      post_ops.append_binary(dnnl::algorithm::binary_add, bias);
      bias_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(position) | DNNL_ARG_SRC_1;
    }
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(post_ops);
    // An invalid description is not an error here: the other way is taken then.
    const auto description = describe_product(a, b, c, attributes, true);
    valid = is_blocked(description);
    if (!valid) {
      return;
    }
    primitive = dnnl::matmul(description);
    scratchpad_bytes = description.scratchpad_desc().get_size();
    execution.add(DNNL_ARG_SRC, a);
    execution.add(DNNL_ARG_WEIGHTS, b);
    execution.add(DNNL_ARG_DST, c);
    execution.add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
    if (key.scaled) {
      execution.add(scale_argument, scale);
    }
    if (key.biased) {
      execution.add(bias_argument, bias);
    }
  }

  dnnl::matmul primitive;
  Execution execution;
  size_t scratchpad_bytes = 0;
  bool valid = false;
};

/// The state of a thread that calls gemm: primitives by shape, and memory for calls that bring
/// none.
struct Workspace {
  std::map<ProductKey, std::unique_ptr<WholeProduct>> whole;
  std::map<TiledKey, std::unique_ptr<TiledProduct>> tiled;
  GrowingBuffer memory;
};

Workspace& workspace() {
  thread_local Workspace instance;
  return instance;
}

/// Whether the product writes c itself, and leaves nothing to finish_rows().
bool is_direct(const Gemm& call, DType type) {
  return call.c.dtype == DType::f32 || (type == DType::bf16 && call.c.dtype == DType::bf16);
}

ProductKey key_of(const Gemm& call, DType type) {
  const bool direct = is_direct(call, type);
  return {.m = call.c.shape[0],
          .n = call.c.shape[1],
          .k = call.depth(),
          .operands = onednn_type(type),
          .b_transposed = call.b.transposed,
          .bf16_result = direct && call.c.dtype == DType::bf16,
          .add = direct && call.beta != 0.0F,
          .scaled = direct && (call.a.tensor.tensor_scale != nullptr ||
                               call.b.tensor.tensor_scale != nullptr),
          .biased = direct && !call.bias.empty(),
          .packed = !call.b.packed.empty(),
          .threads = max_threads()};
}

/// The least number of rows for which packing b for one product pays, and the same where b is fp32.
constexpr int64_t kPackedRows = 128;
constexpr int64_t kPackedPlainRows = 256;

/// Whether b is packed for this product alone. In fp32 that is faster than decoding it into a copy
/// that oneDNN copies into its blocks. Bits are the same.
bool packs_in_call(const Gemm& call, ProductKey key) {
  if (key.packed || key.operands != memory::data_type::f32 || key.m < kPackedRows ||
      (call.b.matrix().dtype == DType::f32 && (key.b_transposed || key.m < kPackedPlainRows)) ||
      packed_layout(key.k, key.n, key.operands) == nullptr) {
    return false;
  }
  key.packed = true;
  return cached(workspace().whole, key).valid;
}

/// Returns op(b) as the product reads it.
const void* operand_of_b(Stream stream, const Gemm& call, DType type, bool packs,
                         GemmMemory& memory) {
  if (!packs) {
    return call.b.packed.empty() ? prepare_operand(call.b, type, false, memory)
                                 : call.b.packed.data;
  }
  const memory::desc& layout =
      *packed_layout(call.depth(), call.c.shape[1], memory::data_type::f32);
  void* const packed = memory.take(layout.get_size());
  pack(stream, call.b, type, packed, memory);
  return packed;
}

/// Rows that one thread converts, multiplies and finishes at a time, where all of it stays in its
/// cache.
constexpr int64_t kRowsAtOnce = 64;
constexpr int64_t kRowsInCache = 256 * 1024;  // bytes of them

/// Whether the product of this key is made so. Its a and c are converted in passes of their own
/// otherwise.
bool is_made_by_rows(const Gemm& call, const ProductKey& key) {
  const bool converts =
      call.a.transposed || call.a.matrix().dtype != DType::f32 || !is_direct(call, DType::f32);
  return key.packed && key.operands == memory::data_type::f32 && converts &&
         key.m % kRowsAtOnce == 0 && key.m > kRowsAtOnce &&
         kRowsAtOnce * (key.n + key.k) * int64_t{sizeof(float)} <= kRowsInCache;
}

/// The product by rows; false where oneDNN has no blocked kernel for so few. `b`: packed.
/// `whole_bytes`: memory of the product made whole, as one of fewer rows may be made; it is taken
/// where rows take less, so that fewer rows never take more.
bool run_by_rows(const Gemm& call, ProductKey key, const void* b, size_t whole_bytes,
                 GemmMemory& memory) {
  const int64_t chunks = key.m / kRowsAtOnce;
  const int64_t threads = key.threads;
  key.m = kRowsAtOnce;
  key.threads = 1;
  const WholeProduct& one = cached(workspace().whole, key);
  if (!one.valid) {
    return false;
  }
  const bool direct = is_direct(call, DType::f32);
  const size_t a_bytes = static_cast<size_t>(kRowsAtOnce * key.k) * sizeof(float);
  const size_t c_bytes = direct ? 0 : static_cast<size_t>(kRowsAtOnce * key.n) * sizeof(float);
  const size_t bytes = round_up(a_bytes + c_bytes + one.scratchpad_bytes, 256);
  const size_t all_bytes = bytes * static_cast<size_t>(std::min(chunks, threads));
  auto* const buffers = static_cast<char*>(memory.take(std::max(all_bytes, whole_bytes)));
  if (memory.counts()) {
    return true;
  }
  const ProductEpilogue all = epilogue_of(call, scale_of(call));
  for_each_by_one_thread(chunks, [&](int64_t chunk) {
    WholeProduct& product = cached(workspace().whole, key);  // of this thread
    const int64_t first = chunk * kRowsAtOnce;
    const int64_t slot = chunks <= threads ? chunk : thread_number();
    char* const buffer = buffers + static_cast<size_t>(slot) * bytes;
    ProductEpilogue part = part_of(all, first, kRowsAtOnce, 0, key.n);
    void* const c = direct ? part.c : buffer + a_bytes;
    product.execution.run(product.primitive,
                          {prepare_rows(call.a, first, kRowsAtOnce, DType::f32, buffer), b, c,
                           buffer + a_bytes + c_bytes, key.scaled ? &all.scale : nullptr,
                           key.biased ? part.bias : nullptr});
    if (!direct) {
      part.product = static_cast<const float*>(c);
      finish_product(part);
    }
  });
  return true;
}

/// The product as one primitive. False where oneDNN has no blocked kernel for it, or its sums would
/// not be exact and have to be.
bool run_whole(Stream stream, const Gemm& call, DType type, GemmMemory& memory) {
  if (!may_be_whole(call.a, call.depth(), type)) {
    return false;
  }
  ProductKey key = key_of(call, type);
  const bool packs = packs_in_call(call, key);
  key.packed = key.packed || packs;
  const bool direct = is_direct(call, type);
  const WholeProduct& planned = cached(workspace().whole, key);
  if (!planned.valid) {
    return false;
  }
  const void* b = operand_of_b(stream, call, type, packs, memory);
  const auto floats_of = [](int64_t rows, int64_t columns) {
    return round_up(static_cast<size_t>(rows * columns) * sizeof(float), 256);
  };
  const size_t whole_bytes =
      floats_of(key.m, key.k) + (direct ? 0 : floats_of(key.m, key.n)) + planned.scratchpad_bytes;
  if (is_made_by_rows(call, key) && run_by_rows(call, key, b, whole_bytes, memory)) {
    return true;
  }
  WholeProduct& product = cached(workspace().whole, key);
  const void* a = prepare_operand(call.a, type, true, memory);
  void* c = direct ? call.c.data : memory.take(static_cast<size_t>(key.m * key.n) * sizeof(float));
  void* scratchpad = memory.take(product.scratchpad_bytes);
  if (memory.counts()) {
    return true;
  }
  const float scale = scale_of(call);
  product.execution.run(product.primitive, {a, b, c, scratchpad, key.scaled ? &scale : nullptr,
                                            key.biased ? call.bias.data : nullptr});
  if (!direct) {
    finish_rows(call, static_cast<const float*>(c));
  }
  return true;
}

/// The product by tiles, where it is not made whole: in fp32, or in bf16 where int8 codes are
/// multiplied in that. Sums of int8 products are exact: those of pieces of K in fp32, their sums in
/// fp64.
void run_tiled(const Gemm& call, GemmMemory& memory) {
  const bool is_int8 = call.a.matrix().dtype == DType::i8;
  const DType type = is_int8 && multiplied_type(call.a) == DType::bf16 ? DType::bf16 : DType::f32;
  const TiledKey key = {.m = call.c.shape[0],
                        .n = call.c.shape[1],
                        .k = call.depth(),
                        .depth = is_int8 ? std::min(call.depth(), kExactDepth) : call.depth(),
                        .type = onednn_type(type),
                        .b_transposed = call.b.transposed,
                        .threads = max_threads()};
  TiledProduct& product = cached(workspace().tiled, key);
  const void* a = prepare_operand(call.a, type, true, memory);
  const void* b = prepare_operand(call.b, type, false, memory);
  void* scratchpads = memory.take(product.scratchpad_bytes());
  auto* products = static_cast<float*>(
      memory.take(static_cast<size_t>(kTileElements * key.threads) * sizeof(float)));
  auto* sums = product.pieces() == 1
                   ? nullptr
                   : static_cast<double*>(memory.take(
                         static_cast<size_t>(kTileElements * key.threads) * sizeof(double)));
  if (memory.counts()) {
    return;
  }
  const ProductEpilogue all = epilogue_of(call, scale_of(call));
  product.for_each_tile([&](const ProductTile& tile) {
    float* tile_product = products + tile.thread * kTileElements;
    product.run(tile, 0, a, b, tile_product, scratchpads);
    if (sums != nullptr) {
      double* const sum = sums + tile.thread * kTileElements;
      const int64_t count = tile.rows * tile.columns;
      std::copy_n(tile_product, count, sum);
      for (int64_t piece = 1; piece < product.pieces(); ++piece) {
        product.run(tile, piece, a, b, tile_product, scratchpads);
        std::transform(sum, sum + count, tile_product, sum, std::plus<double>());
      }
      std::transform(sum, sum + count, tile_product,
                     [](double value) { return static_cast<float>(value); });
    }
    ProductEpilogue part = part_of(all, tile.row, tile.rows, tile.column, tile.columns);
    part.product = tile_product;
    part.product_stride = tile.columns;
    finish_product(part);
  });
}

/// FP8 products in groups of 32, as a short accumulator adds them.
void run_emulated(const Gemm& call, GemmMemory& memory) {
  const int64_t m = call.c.shape[0];
  const int64_t n = call.c.shape[1];
  const auto* a = static_cast<const float*>(prepare_operand(call.a, DType::f32, true, memory));
  const auto* b = static_cast<const float*>(prepare_operand(call.b, DType::f32, true, memory));
  auto* product = static_cast<float*>(memory.take(static_cast<size_t>(m * n) * sizeof(float)));
  if (memory.counts()) {
    return;
  }
  short_product({a, b, m, n, call.depth(), product});
  finish_rows(call, product);
}

}  // namespace

void gemm(Stream stream, const Gemm& call) {
  const size_t bytes = gemm_workspace_bytes(call);
  const bool brings_memory = static_cast<size_t>(call.scratch.count()) >= bytes &&
                             call.scratch.dtype == DType::u8 && !call.scratch.empty();
  GemmMemory memory(brings_memory ? call.scratch.data : workspace().memory.reserve(bytes), bytes);
  multiply(stream, call, memory);
}

size_t gemm_workspace_bytes(const Gemm& call) {
  GemmMemory memory;
  multiply(Stream(DeviceKind::cpu, nullptr, nullptr), call, memory);
  return std::max<size_t>(memory.taken(), 1);
}

void multiply(Stream stream, const Gemm& call, GemmMemory& memory) {
  if (call.a.has_blocks()) {
    return multiply_blocks(stream, call, memory);
  }
  if (call.emulate_accumulator && is_fp8(call.a.matrix().dtype) && is_fp8(call.b.matrix().dtype)) {
    return run_emulated(call, memory);
  }
  const DType type = multiplied_type(call.a);
  if (run_whole(stream, call, type, memory)) {
    return;
  }
  Gemm as_stored = call;
  as_stored.b.packed = {};
  if ((call.b.packed.empty() || !run_whole(stream, as_stored, type, memory)) &&
      (type == DType::f32 || !run_whole(stream, as_stored, DType::f32, memory))) {
    run_tiled(as_stored, memory);
  }
}

DType multiplied_type(const GemmOperand& operand) {
  const DType type = operand.matrix().dtype;
  if (type == DType::i8 && uses_int8_units()) {
    return type;
  }
  return type != DType::f32 && type != DType::f16 && uses_bf16_units() ? DType::bf16 : DType::f32;
}

bool may_be_whole(const GemmOperand& operand, int64_t k, DType type) {
  return operand.matrix().dtype != DType::i8 ||
         k <= (type == DType::i8 ? kInt32Depth : kExactDepth);
}

bool reads_packed(const Gemm& call) {
  const DType type = multiplied_type(call.a);
  return !call.b.packed.empty() && may_be_whole(call.a, call.depth(), type) &&
         cached(workspace().whole, key_of(call, type)).valid;
}

bool probe_gemms(Device& /*device*/, const Fp8Products* /*known*/) {
  return true;
}

void tune_gemms(Device& /*device*/, const std::string& /*folder*/) {}

}  // namespace fp8train::ops::cpu
