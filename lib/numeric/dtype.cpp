#include "numeric/dtype.h"

namespace fp8train {

std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "fp16";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
    case DType::e8m0:
      return "e8m0";
    case DType::i8:
      return "int8";
    case DType::u8:
      return "uint8";
    case DType::u16:
      return "uint16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::f64:
      return "fp64";
  }
  return "?";
}

}  // namespace fp8train
