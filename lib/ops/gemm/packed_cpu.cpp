// Operands in the layout of oneDNN's blocked kernel, which otherwise copies b into it in each call.
// For one product in fp32, packing from the stored type takes one pass where decoding and oneDNN's
// copy take two; where b [k, n] is read as it is stored, oneDNN 2.6 needs up to three times as long
// if rows lie a multiple of 12 KiB apart.

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <map>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "ops/dispatch/cpu_operations.h"
#include "ops/gemm/gemm_operands_cpu.h"
#include "ops/gemm/onednn.h"

namespace fp8train::ops {
namespace cpu {
namespace {

using dnnl::memory;

/// Whether values are made of codes before they are packed.
bool has_values_under(const GemmOperand& b) {
  return b.has_blocks() && b.tensor.format.block != per::row;
}

/// Whether products of such codes are of whole matrices, and not of blocks of K.
bool is_whole(const GemmOperand& b) {
  const TensorFormat& format = b.tensor.format;
  return !has_values_under(b) || format.row_scaled || facts_of(format.scale_type).exact_in_bf16;
}

/// Returns the layout that oneDNN reads op(b) in; null: its kernels read it as it is.
const memory::desc* layout_of(const GemmOperand& b) {
  const Shape& shape = b.matrix().shape;
  const int64_t k = shape[b.transposed ? 1 : 0];
  const DType type = multiplied_type(b);
  return is_whole(b) && may_be_whole(b, k, type)
             ? packed_layout(k, shape[b.transposed ? 0 : 1], onednn_type(type))
             : nullptr;
}

/// The key of a Reorder: op(b) [k, n] as it is stored, and the type that it is packed in.
struct ReorderKey {
  int64_t k, n;
  memory::data_type from, to;
  bool transposed;
  int threads;

  auto operator<=>(const ReorderKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// A copy of a matrix into the layout of products.
struct Reorder {
  explicit Reorder(const ReorderKey& key) {
    const memory::desc from =
        stored_matrix(key.k, key.n, key.from, key.transposed, key.transposed ? key.k : key.n);
    const memory::desc& to = *packed_layout(key.k, key.n, key.to);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::reorder::primitive_desc description(onednn_engine(), from, onednn_engine(), to,
                                                    attributes);
    scratchpad_bytes = description.scratchpad_desc().get_size();
    primitive = dnnl::reorder(description);
    execution.add(DNNL_ARG_FROM, from);
    execution.add(DNNL_ARG_TO, to);
    execution.add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  }

  dnnl::reorder primitive;
  Execution execution;
  size_t scratchpad_bytes = 0;
};

/// The matrix as it is stored, in a type that oneDNN converts exactly to that of the product.
ConstView values_of(Stream stream, const GemmOperand& b, DType type, GemmMemory& memory) {
  const ConstView matrix = b.matrix();
  if (has_values_under(b)) {
    return values_under(stream, b, memory);
  }
  const DType from = type == DType::i8                                          ? DType::i8
                     : matrix.dtype == DType::f32 || matrix.dtype == DType::f16 ? DType::f32
                                                                                : DType::bf16;
  return {prepare_operand(b, from, false, memory), from, matrix.shape};
}

}  // namespace

void pack(Stream stream, const GemmOperand& b, DType type, void* packed, GemmMemory& memory) {
  const ConstView values = values_of(stream, b, type, memory);
  thread_local std::map<ReorderKey, std::unique_ptr<Reorder>> reorders;
  Reorder& reorder = cached(reorders, {.k = values.shape[b.transposed ? 1 : 0],
                                       .n = values.shape[b.transposed ? 0 : 1],
                                       .from = onednn_type(values.dtype),
                                       .to = onednn_type(type),
                                       .transposed = b.transposed,
                                       .threads = max_threads()});
  void* const scratchpad = memory.take(reorder.scratchpad_bytes);
  if (!memory.counts()) {
    reorder.execution.run(reorder.primitive, {values.data, packed, scratchpad});
  }
}

void pack_operand(Stream stream, const GemmOperand& b, View packed, View scratch) {
  const memory::desc* const layout = layout_of(b);
  check(layout != nullptr && packed.count() == static_cast<int64_t>(layout->get_size()),
        "pack_operand: memory of packed_bytes() expected");
  thread_local GrowingBuffer buffer;
  const size_t bytes = pack_scratch_bytes(b);
  const bool brings_memory = static_cast<size_t>(scratch.count()) >= bytes && !scratch.empty();
  GemmMemory memory(brings_memory ? scratch.data : buffer.reserve(bytes), bytes);
  pack(stream, b, multiplied_type(b), packed.data, memory);
}

}  // namespace cpu

namespace {

/// Where fp32 units multiply, packing twice the bytes saves a few percent of a step at most; int8
/// weights are packed slowly, and gain in products of few rows only.
bool packs(const GemmOperand& b) {
  const char* const wanted = std::getenv("FP8TRAIN_CPU_PACK");
  if (wanted == nullptr) {
    return cpu::multiplied_type(b) == DType::bf16;
  }
  const std::string_view choice = wanted;
  if (choice != "0" && choice != "1") {
    throw ConfigError(fmt::format("FP8TRAIN_CPU_PACK is '{}'; it is 0 or 1", choice));
  }
  return choice == "1";
}

}  // namespace

size_t packed_bytes(const DeviceTraits& traits, const GemmOperand& b) {
  const dnnl::memory::desc* const layout =
      traits.fp8_gemm_by_library || !packs(b) ? nullptr : cpu::layout_of(b);
  return layout == nullptr ? 0 : layout->get_size();
}

size_t pack_scratch_bytes(const GemmOperand& b) {
  cpu::GemmMemory counted;
  cpu::pack(Stream(DeviceKind::cpu, nullptr, nullptr), b, cpu::multiplied_type(b), nullptr,
            counted);
  return std::max<size_t>(counted.taken(), 1);
}

}  // namespace fp8train::ops
