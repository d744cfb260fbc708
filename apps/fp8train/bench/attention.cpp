#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "bench/bench.h"
#include "bench/parts.h"
#include "ops/attention/attention.h"
#include "tensor/tensor.h"

namespace fp8train {
namespace {

/// q, k and v, or their gradients, as slices of one fused projection [B * T, (H + 2 Hkv) * D].
struct Fused {
  Tensor rows;
  ops::HeadsView q, k, v;

  Fused(Tensor projection, const ops::AttentionShape& shape) : rows(std::move(projection)) {
    const auto slice = [&](int64_t first_head) {
      const View all = rows.view();
      const int64_t offset = first_head * shape.head_dim * static_cast<int64_t>(size_of(all.dtype));
      return ops::HeadsView{.data = static_cast<char*>(all.data) + offset,
                            .dtype = all.dtype,
                            .row_stride = all.shape.back(),
                            .length_capacity = shape.key_length};
    };
    q = slice(0);
    k = slice(shape.heads);
    v = slice(shape.heads + shape.kv_heads);
  }
};

ops::AttentionShape attention_shape(const BenchOptions& options) {
  if (options.heads % options.kv_heads != 0 || options.head_dim > ops::kMaxHeadDim) {
    throw ConfigError(fmt::format(
        "--heads must be a multiple of --kv-heads, and --head-dim at most {}", ops::kMaxHeadDim));
  }
  return {.batch = options.batch,
          .query_length = options.step.settings.seq_length,
          .key_length = options.step.settings.seq_length,
          .heads = options.heads,
          .kv_heads = options.kv_heads,
          .head_dim = options.head_dim,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(options.head_dim))),
          .deterministic = options.deterministic};
}

/// Seconds of forward and backward, and their FLOP/s: of the causal half, recomputation uncounted.
Json attention_rates(Device& device, const ops::AttentionShape& shape, double min_seconds) {
  constexpr DType dtype = DType::bf16;
  const int64_t rows = shape.batch * shape.key_length;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const int64_t out_width = shape.heads * shape.head_dim;
  const Fused x(random_matrix(device, dtype, rows, width), shape);
  const Fused dx(Tensor(device, dtype, {rows, width}, MemoryCategory::workspace), shape);
  const Tensor out(device, dtype, {rows, out_width}, MemoryCategory::workspace);
  const Tensor dout = random_matrix(device, dtype, rows, out_width);
  const Tensor log_sum_exp(device, DType::f32, {shape.batch, shape.heads, shape.query_length},
                           MemoryCategory::workspace);
  const auto heads = [&](const Tensor& tensor) {
    return ops::HeadsView{tensor.view().data, dtype, out_width, shape.query_length};
  };
  const int64_t needed = ops::attention_backward_scratch(device.stream(), {.shape = shape,
                                                                           .q = x.q,
                                                                           .k = x.k,
                                                                           .v = x.v,
                                                                           .out = heads(out),
                                                                           .dout = heads(dout),
                                                                           .dq = dx.q,
                                                                           .dk = dx.k,
                                                                           .dv = dx.v});
  const Tensor scratch(device, DType::f32, {needed}, MemoryCategory::workspace);
  const auto forward = [&] {
    ops::attention_forward(device.stream(), {.shape = shape,
                                             .q = x.q,
                                             .k = x.k,
                                             .v = x.v,
                                             .out = heads(out),
                                             .log_sum_exp = log_sum_exp});
    device.synchronize();
  };
  const auto backward = [&] {
    ops::attention_backward(device.stream(), {.shape = shape,
                                              .q = x.q,
                                              .k = x.k,
                                              .v = x.v,
                                              .out = heads(out),
                                              .log_sum_exp = log_sum_exp,
                                              .dout = heads(dout),
                                              .dq = dx.q,
                                              .dk = dx.k,
                                              .dv = dx.v,
                                              .scratch = scratch});
    device.synchronize();
  };
  const double forward_seconds = median_seconds(forward, min_seconds);
  const double backward_seconds = median_seconds(backward, min_seconds);
  // Two products of the causal half forward, five backward (Dao 2023, section 4.1, counts so).
  const double product = static_cast<double>(shape.batch * shape.heads) *
                         static_cast<double>(shape.query_length * shape.key_length) *
                         static_cast<double>(shape.head_dim);
  return {{"forward_seconds", forward_seconds},
          {"forward_gflops", 2 * product / forward_seconds / 1e9},
          {"backward_seconds", backward_seconds},
          {"backward_gflops", 5 * product / backward_seconds / 1e9}};
}

Json measure_attention(Device& device, const BenchOptions& options) {
  const ops::AttentionShape shape = attention_shape(options);
  const Json rates = attention_rates(device, shape, options.seconds / 2);
  Json report = {{"kernels", ops::attention_kernels(device.stream())},
                 {"batch", shape.batch},
                 {"seq_length", shape.query_length},
                 {"heads", shape.heads},
                 {"kv_heads", shape.kv_heads},
                 {"head_dim", shape.head_dim},
                 {"deterministic", shape.deterministic}};
  report.update(rates);
  return report;
}

void add_attention_options(Arguments part, BenchOptions& options) {
  part.option("--batch", options.batch, 1, "Sequences");
  part.option("--seq-length", options.step.settings.seq_length, 1, "Tokens of a sequence");
  part.option("--heads", options.heads, 1, "Heads of the queries");
  part.option("--kv-heads", options.kv_heads, 1, "Heads of keys and values");
  part.option("--head-dim", options.head_dim, 1, "Elements of a head");
  part.flag("--deterministic", options.deterministic,
            "On a GPU with cuDNN, its deterministic backward pass");
}

}  // namespace

const BenchPart kAttentionBench = {"attention", "Causal attention in bf16",
                                   "fp8train bench attention --batch 2 --seq-length 1024",
                                   add_attention_options, measure_attention};

}  // namespace fp8train
