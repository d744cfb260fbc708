#pragma once
// The families of codes: what people call a format regardless of its exponent bits.

#include <string>

#include "numeric/dtype.h"

namespace fp8train {

/// Returns "fp8" for E4M3 and E5M2, "fp4" for E2M1, and the type's own name for int8 and for types
/// that are not codes.
inline std::string code_family(DType type) {
  const DTypeFacts& facts = facts_of(type);
  const bool is_float_code = facts.has(use::code) && type != DType::i8;
  return is_float_code ? "fp" + std::to_string(facts.bits) : std::string(facts.name);
}

}  // namespace fp8train
