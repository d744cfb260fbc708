#pragma once
// The attention kernels of the library itself, over two files; attention_cuda.cpp chooses between
// them and cuDNN.

#include "ops/attention/attention.h"

namespace fp8train::ops::cuda {

/// Runs our own kernels for attention_forward(), whatever FP8TRAIN_CUDA_ATTENTION says.
void own_attention_forward(Stream stream, const AttentionForward& call);
/// Runs our own kernels for attention_backward(), whatever FP8TRAIN_CUDA_ATTENTION says.
void own_attention_backward(Stream stream, const AttentionBackward& call);

}  // namespace fp8train::ops::cuda
