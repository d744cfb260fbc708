#pragma once
// The attention kernels of the library itself, over two files; attention_forward.cu puts them into
// the table.

#include "ops/attention.h"

namespace fp8train::ops::cuda {

void attention_forward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                       HeadsView v, HeadsView out, View log_sum_exp);
void attention_backward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                        HeadsView v, HeadsView out, View log_sum_exp, HeadsView dout, HeadsView dq,
                        HeadsView dk, HeadsView dv, View scratch);

}  // namespace fp8train::ops::cuda
