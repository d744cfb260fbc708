#pragma once
// The one place where an operation is dispatched: each backend (cpu at each x86-64 level, cuda,
// meta) fills one table of functions with the signatures of the public headers, and
// op_table(stream) picks it. Shapes and types have been checked before.

#include "ops/attention/attention.h"
#include "ops/attention/kv_cache.h"
#include "ops/cast/granule_parts.h"
#include "ops/cast/quantize.h"
#include "ops/exchange/shared_wire.h"
#include "ops/exchange/wire.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/scaled_gemm.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/norm.h"
#include "ops/optimizer/optimizer.h"
#include "ops/pointwise/activation.h"
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/embedding.h"
#include "ops/pointwise/smoothing.h"
#include "ops/storage/storage.h"

namespace fp8train::ops {

struct OpTable {
  decltype(&ops::cast) cast;
  decltype(&ops::add) add;
  decltype(&ops::add_bias) add_bias;
  decltype(&ops::bias_backward) bias_backward;
  decltype(&ops::fill) fill;
  decltype(&ops::scale_by) scale_by;
  decltype(&ops::amax) amax;
  decltype(&ops::quantize) quantize;
  decltype(&ops::quantize_current) quantize_current;
  decltype(&ops::transpose_codes) transpose_codes;
  decltype(&ops::dequantize) dequantize;
  decltype(&ops::quantize_granules) quantize_granules;
  decltype(&ops::dequantize_granules) dequantize_granules;
  decltype(&ops::granule_part_amax) granule_part_amax;
  decltype(&ops::quantize_granule_part) quantize_granule_part;
  decltype(&ops::find_granule_scales) find_granule_scales;
  decltype(&ops::compute_current_scale) compute_current_scale;
  decltype(&ops::propagate_non_finite) propagate_non_finite;
  decltype(&ops::update_delayed_scaling) update_delayed_scaling;
  decltype(&ops::gemm) gemm;
  decltype(&ops::scaled_gemm) scaled_gemm;
  decltype(&ops::rms_norm_forward) rms_norm_forward;
  decltype(&ops::rms_norm_backward) rms_norm_backward;
  decltype(&ops::layer_norm_forward) layer_norm_forward;
  decltype(&ops::layer_norm_backward) layer_norm_backward;
  decltype(&ops::attention_forward) attention_forward;
  decltype(&ops::attention_backward) attention_backward;
  decltype(&ops::append_to_cache) append_to_cache;
  decltype(&ops::rope) rope;
  decltype(&ops::head_rms_norm_forward) head_rms_norm_forward;
  decltype(&ops::head_rms_norm_backward) head_rms_norm_backward;
  decltype(&ops::swiglu_forward) swiglu_forward;
  decltype(&ops::swiglu_backward) swiglu_backward;
  decltype(&ops::find_smoothing) find_smoothing;
  decltype(&ops::divide_columns) divide_columns;
  decltype(&ops::gelu_forward) gelu_forward;
  decltype(&ops::gelu_backward) gelu_backward;
  decltype(&ops::embedding_forward) embedding_forward;
  decltype(&ops::embedding_backward) embedding_backward;
  decltype(&ops::cross_entropy) cross_entropy;
  decltype(&ops::accumulate_loss) accumulate_loss;
  decltype(&ops::sum_of_squares) sum_of_squares;
  decltype(&ops::prepare_step) prepare_step;
  decltype(&ops::store) store;
  decltype(&ops::read_stored) read_stored;
  decltype(&ops::update_auto_scale) update_auto_scale;
  decltype(&ops::update_auto_scales) update_auto_scales;
  decltype(&ops::compress) compress;
  decltype(&ops::decompress) decompress;
  decltype(&ops::adamw) adamw;
  decltype(&ops::adamw_amax) adamw_amax;
  decltype(&ops::sgd) sgd;
  decltype(&ops::pack_wire) pack_wire;
  decltype(&ops::sum_wire) sum_wire;
  decltype(&ops::unpack_wire) unpack_wire;
  decltype(&ops::combine_ranks) combine_ranks;
  decltype(&ops::shared_amax) shared_amax;
  decltype(&ops::shared_scales) shared_scales;
  decltype(&ops::pack_shared) pack_shared;
  decltype(&ops::sum_shared) sum_shared;
  decltype(&ops::count_largest) count_largest;
  decltype(&ops::read_shared) read_shared;
};

/// Throws DeviceError when the stream's device has no operations in this build.
const OpTable& op_table(const Stream& stream);

}  // namespace fp8train::ops
