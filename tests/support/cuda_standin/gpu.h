#pragma once
// The GPU that the stand-in runtime describes to the program.

#include <cstddef>

namespace fp8train::standin {

struct Gpu {
  const char* key;   ///< value of FP8TRAIN_STANDIN_GPU
  const char* name;  ///< as the driver reports it
  int capability;    ///< 89, 90, 100
  int multiprocessors;
  size_t memory;          ///< bytes that a process can have
  size_t cache;           ///< bytes of the second level
  size_t dynamic_shared;  ///< bytes that a block gets when it asks for more than 48 KiB
};

/// The one that FP8TRAIN_STANDIN_GPU names: rtx4090, h100 (of 80 GB), h200 (also when it is not
/// set) or b200. An unknown name ends the program. With FP8TRAIN_STANDIN_MEMORY it has as many MiB.
const Gpu& gpu();

/// As many of them as FP8TRAIN_STANDIN_GPUS says; 1 when it is not set.
int gpu_count();

}  // namespace fp8train::standin
