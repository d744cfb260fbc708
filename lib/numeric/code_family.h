#pragma once
// The families of codes: what people call a format regardless of its exponent bits.

#include <string>

#include "numeric/dtype.h"

namespace fp8train {

/// Returns "fp8" for E4M3 and E5M2, "fp4" for E2M1, "int8", and the type's own name for types that
/// are not codes.
inline std::string code_family(DType type) {
  const DTypeFacts& facts = facts_of(type);
  const char* const kind = facts.has(use::integer) ? "int" : "fp";
  return facts.has(use::code) ? kind + std::to_string(facts.bits) : std::string(facts.name);
}

}  // namespace fp8train
