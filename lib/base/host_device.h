#pragma once
// Marks small functions that are compiled into host code of every x86 level and into CUDA device
// code alike. Always inlined: the same header is included by translation units built for different
// x86 levels, and an out-of-line copy of one must never be linked into another.

#if defined(__CUDACC__)
#define FP8TRAIN_HD __host__ __device__ __forceinline__
#else
#define FP8TRAIN_HD inline __attribute__((always_inline))
#endif
