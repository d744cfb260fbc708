#pragma once
// The attention kernels of the library itself, over two files; attention_cuda.cpp chooses between
// them and cuDNN.

#include "ops/attention/attention.h"

namespace fp8train::ops::cuda {

void own_attention_forward(Stream stream, const AttentionForward& call);
void own_attention_backward(Stream stream, const AttentionBackward& call);

}  // namespace fp8train::ops::cuda
