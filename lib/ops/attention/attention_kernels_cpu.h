#pragma once
// The attention kernels of one x86-64 level, over several files; fill_attention puts them into the
// table. Only for files compiled by fp8train_isa_sources.

#include "ops/attention/attention.h"

namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS {

void attention_forward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                       HeadsView v, HeadsView out, View log_sum_exp);
void attention_backward(Stream stream, const AttentionShape& shape, HeadsView q, HeadsView k,
                        HeadsView v, HeadsView out, View log_sum_exp, HeadsView dout, HeadsView dq,
                        HeadsView dk, HeadsView dv, View scratch);
void rope(Stream stream, HeadsView x, int64_t batch, int64_t length, int64_t heads,
          int64_t head_dim, ConstView cosines, ConstView sines, int64_t position_offset,
          bool inverse);

}  // namespace fp8train::ops::cpu::FP8TRAIN_ISA_NS
