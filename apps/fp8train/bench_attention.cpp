#include "bench_attention.h"

#include "bench.h"
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

}  // namespace

AttentionRates attention_rates(Device& device, const ops::AttentionShape& shape, DType dtype,
                               double min_seconds) {
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
  AttentionRates rates = {};
  rates.forward_seconds = median_seconds(forward, min_seconds);
  rates.backward_seconds = median_seconds(backward, min_seconds);
  // Two products of the causal half forward, five backward (Dao 2023, section 4.1, counts so).
  const double product = static_cast<double>(shape.batch * shape.heads) *
                         static_cast<double>(shape.query_length * shape.key_length) *
                         static_cast<double>(shape.head_dim);
  rates.forward_flops = 2 * product / rates.forward_seconds;
  rates.backward_flops = 5 * product / rates.backward_seconds;
  return rates;
}

}  // namespace fp8train
