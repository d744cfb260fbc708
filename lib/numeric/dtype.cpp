#include "numeric/dtype.h"

#include <string>

#include "base/error.h"

namespace fp8train {

void throw_no_size_of(DType type) {
  throw InternalError("size_of: an element of " + std::string(name_of(type)) +
                      " has less than a byte; ask bytes_of_rows");
}

void throw_no_kernel_for(DType type) {
  throw InternalError("no kernel takes elements of " + std::string(name_of(type)) + " here");
}

}  // namespace fp8train
