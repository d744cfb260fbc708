#pragma once
// Values that no training can have left in a checkpoint. Host memory; synchronous, on all threads.

#include <cstdint>
#include <string>

#include "numeric/dtype.h"

namespace fp8train {

enum class Signs : uint8_t { any, not_negative };

/// Returns the index of the first of `count` values that is NaN, infinite or, with
/// Signs::not_negative, below zero; `count` where there is none. `type` is a stored type
/// (is_stored_type).
int64_t first_impossible(const void* values, DType type, int64_t count, Signs signs = Signs::any);

/// Returns "moment2.head.weight[7] is NaN, infinite or negative" for the first such value of the
/// tensor `name` of an optimizer's file, or an empty text. Second moments, scales and factors are
/// never negative. `first`: the index of values[0]. Codes of four bits are u8, in pairs; the text
/// has the index of one of them.
std::string impossible_state(const std::string& name, const void* values, DType type, int64_t count,
                             int64_t first = 0);

}  // namespace fp8train
