#pragma once
// The attention kernels of the library itself, over two files; attention.cpp chooses between them
// and cuDNN.

#include "ops/attention/attention.h"

namespace fp8train::ops::cuda {

void own_attention_forward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                           HeadsView v, HeadsView out, View log_sum_exp);
void own_attention_backward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                            HeadsView v, HeadsView out, View log_sum_exp, HeadsView dout,
                            HeadsView dq, HeadsView dk, HeadsView dv, View scratch);

}  // namespace fp8train::ops::cuda
