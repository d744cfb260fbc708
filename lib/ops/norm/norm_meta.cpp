#include "ops/dispatch/meta_counts.h"

namespace fp8train::ops::meta {
namespace {

/// To write codes a second kernel reads x again, which the first one reads for the statistics.
double recast_bytes(const QuantizeSink& cast, const ConstView& x, const ConstView& statistics) {
  return cast.out.empty() ? 0.0 : bytes_of(x) + bytes_of(statistics);
}

int norm_forward_launches(const QuantizeSink& cast) {
  return cast.out.empty() ? 1 : 2;
}

const char* norm_forward_kernel(const QuantizeSink& cast) {
  return cast.out.empty() ? "norm_forward" : "norm_forward cast";
}

}  // namespace

void rms_norm_forward(Stream stream, ConstView x, ConstView weight, float /*eps*/, View y,
                      View rstd, const QuantizeSink& cast) {
  count(stream,
        bytes_of(x) + bytes_of(weight) + bytes_of(y) + bytes_of(rstd) + bytes_of(cast) +
            recast_bytes(cast, x, rstd),
        norm_forward_kernel(cast), x.count(), norm_forward_launches(cast));
}

void rms_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView rstd,
                       View dx, bool accumulate, View weight_grad, View /*scratch*/) {
  count(stream,
        bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(rstd) +
            bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad),
        "norm_backward", x.count(), 2);
}

void layer_norm_forward(Stream stream, ConstView x, ConstView weight, ConstView bias, float /*eps*/,
                        View y, View mean, View rstd, const QuantizeSink& cast) {
  count(stream,
        bytes_of(x) + bytes_of(weight) + bytes_of(bias) + bytes_of(y) + bytes_of(mean) +
            bytes_of(rstd) + bytes_of(cast) + recast_bytes(cast, x, rstd),
        norm_forward_kernel(cast), x.count(), norm_forward_launches(cast));
}

void layer_norm_backward(Stream stream, ConstView dy, ConstView x, ConstView weight, ConstView mean,
                         ConstView rstd, View dx, bool accumulate, View weight_grad, View bias_grad,
                         View /*scratch*/) {
  count(stream,
        bytes_of(dy) + bytes_of(x) + bytes_of(weight) + bytes_of(mean) + bytes_of(rstd) +
            bytes_of(dx) * (accumulate ? 2 : 1) + 2 * bytes_of(weight_grad) +
            2 * bytes_of(bias_grad),
        "norm_backward", x.count(), bias_grad.empty() ? 2 : 3);
}

void head_rms_norm_forward(Stream stream, HeadsView x, int64_t rows, int64_t heads,
                           int64_t head_dim, ConstView weight, float /*eps*/, View original,
                           View rstd) {
  count(stream, 2 * bytes_of(x, rows, heads, head_dim) + bytes_of(weight) + bytes_of(original) +
                    bytes_of(rstd));
}

void head_rms_norm_backward(Stream stream, HeadsView dx, int64_t rows, int64_t heads,
                            int64_t head_dim, ConstView original, ConstView weight, ConstView rstd,
                            View weight_grad, View /*scratch*/) {
  count(stream, {.bytes = 2 * bytes_of(dx, rows, heads, head_dim) + bytes_of(original) +
                          bytes_of(weight) + bytes_of(rstd) + 2 * bytes_of(weight_grad),
                 .launches = 2});
}

}  // namespace fp8train::ops::meta
