#pragma once
// The table of products. One function says whether two formats have a product, on which device,
// what K must be a multiple of, and the reason if they have none; checks of plans and of calls, the
// layers and the probe of a GPU's library ask it and keep no rule of their own. The formats of one
// operand are in ops/cast/block_formats.h, the element types that tensor cores multiply in
// device/fp8_products.h.

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "device/device.h"
#include "ops/gemm/gemm.h"
#include "tensor/tensor_format.h"

namespace fp8train::ops {

/// Blocks and scales of two quantized operands that a product reads, both along K.
struct BlockPair {
  ScaleBlock a, b;
  DType scale;              ///< type of the scales of both
  ScalePair scales;         ///< their line in DeviceTraits::fp8_products
  int64_t k_multiple;       ///< multiple of K, on tensor cores
  int64_t mn_multiple = 1;  ///< multiple of M and N, on tensor cores
};

/// Returns all pairs of blocks with their scales. Next to row scales, one scale for the tensor is
/// the same scale for each row.
std::span<const BlockPair> block_pairs();

/// "tensor with tensor, row with row, 1x128 with 1x128 or 128x128, ...", for messages.
std::string block_pairs_text();

/// The formats of the operands and the result. Unscaled formats are plain operands.
struct GemmFormats {
  TensorFormat a, b;
  DType c = DType::bf16;
  bool fast_accumulate = false;
};

/// Extents that are not known yet are 0 and count as aligned.
struct GemmExtents {
  int64_t m = 0, n = 0, k = 0;
};

/// How a device runs a product, or why it cannot.
struct GemmSupport {
  bool native = false;       ///< as it is
  bool dequantized = false;  ///< from operands decoded to 16 bits; if neither is set, there is none
  std::string_view reason;   ///< why it is not native, for people
  bool fast_accumulate = false;  ///< in the short accumulator, as asked for and possible
  int64_t k_multiple = 1;        ///< multiple of K on tensor cores
  /// Where K is none: the K of the native product of both operands with zeros behind them. Else 0.
  int64_t padded_k = 0;
};

/// Returns how a device with these traits multiplies these formats: by the rules of tensor cores,
/// its table, and its library, which is asked for each shape. DeviceTraits{}, the cpu's, tells
/// whether any device does. An operand with scales next to a plain one is read as the values that
/// it stands for.
GemmSupport gemm_support(const DeviceTraits& traits, const GemmFormats& formats,
                         const GemmExtents& extents = {});

/// Returns the same for the formats and extents of `call`, whose data is not read.
GemmSupport gemm_support(const DeviceTraits& traits, const Gemm& call);

/// Returns the bytes of `call.scratch` on a device with these traits: on the cpu all that a product
/// takes, for a GPU's library 0 where the product is native.
size_t gemm_scratch_bytes(const DeviceTraits& traits, const Gemm& call);
/// The bytes of both operands in a type of 16 bits, the second one aligned to 256 bytes.
size_t dequantized_scratch_bytes(const Gemm& call);
/// The shapes of the codes of both operands, which lie along K, with `k` in place of the call's.
std::pair<Shape, Shape> padded_shapes(const Gemm& call, int64_t k);

/// The format in which a product reads an operand next to one of format `other`: with row scales,
/// one scale for the tensor is the same scale for each row.
TensorFormat read_as(TensorFormat format, const TensorFormat& other);

/// To be called once at start-up, before memory is planned: runs a small product of known result
/// for each of the device's Fp8Products, with uneven extents and, where those are refused or give
/// another result, with extents that are multiples of 8, 16 and 128. The device's traits get what
/// was found, with a warning for what fails, and from then on its library is asked for each shape.
/// Returns whether another trial would find the same: false if the library failed otherwise than by
/// refusing a product. Throws DeviceError where not the library but the GPU fails. Other devices
/// have nothing to find out. `known`: what an earlier probe has found with this GPU and library,
/// which holds without another trial.
bool probe_gemms(Device& device, const Fp8Products* known = nullptr);

/// To be raised with every change of the products that probe_gemms() tries, and of Fp8Products:
/// tables that were found with another version do not hold (train/probed_products.h).
constexpr int kProbeVersion = 2;

}  // namespace fp8train::ops
