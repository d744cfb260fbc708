#pragma once
// The functions of NCCL. The library is loaded when the first communicator is made, so that the
// program starts on machines without it. In the SHIM form a fake stands in
// (tests/support/cuda_shim/nccl_fake.h).

#include <string>

namespace fp8train {

/// A function of NCCL by its name. Throws CommError, saying what to install, where there is none.
void* nccl_function(const char* name);

/// Returns why the library cannot be used, or nothing if it was found.
std::string why_nccl_is_unusable();

}  // namespace fp8train
