#pragma once
// How the cuda backend's table is put together: each file of kernels fills its entries. In a build
// without the backend cuda_table_absent.cpp stands in.

#include <optional>
#include <string>

#include "ops/dispatch/op_table.h"

namespace fp8train::ops::cuda {

/// Throws DeviceError where this build has no CUDA backend.
const OpTable& table();

/// What remains of a cuda device's traits after each scale mode of its GEMMs has been tried once
/// (probe_scaled_gemm). Throws like table().
DeviceTraits probed_traits(Device& device);

/// tune_gemms on a cuda device. Throws like table().
void tune_gemms(Device& device, const std::string& folder);

/// ops::attention_kernels on a cuda device. Throws like table().
std::string attention_kernels(Stream stream);

/// Bytes that a library which computes these gradients needs; none where our own kernels do.
/// Throws like table().
std::optional<size_t> attention_backward_workspace(Stream stream, const AttentionShape& shape,
                                                   HeadsView q, HeadsView k, HeadsView v,
                                                   HeadsView out, HeadsView dout, HeadsView dq,
                                                   HeadsView dk, HeadsView dv);

void fill_elementwise(OpTable& table);
void fill_quantize(OpTable& table);
void fill_quantize_granules(OpTable& table);
void fill_granule_parts(OpTable& table);
void fill_gemm(OpTable& table);
void fill_scaled_gemm(OpTable& table);
void fill_norm(OpTable& table);
void fill_attention(OpTable& table);
void fill_rope(OpTable& table);
void fill_activation(OpTable& table);
void fill_smoothing(OpTable& table);
void fill_embedding(OpTable& table);
void fill_cross_entropy(OpTable& table);
void fill_optimizer(OpTable& table);
void fill_adamw(OpTable& table);
void fill_storage(OpTable& table);
void fill_wire(OpTable& table);
void fill_shared_wire(OpTable& table);
void fill_kv_cache(OpTable& table);

}  // namespace fp8train::ops::cuda
