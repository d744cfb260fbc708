#pragma once
// Products whose scratch memory is part of the plan of a step: it comes from an arena, also where
// the plan is made on meta, and is free again afterwards.

#include "device/arena.h"
#include "device/device.h"
#include "ops/gemm/gemm.h"

namespace fp8train::ops {

/// Returns the call with scratch of `arena`. Where that has too little, as for a shape that was not
/// planned, the device takes memory of its own.
Gemm with_scratch(const Device& device, Arena& arena, Gemm call);

/// gemm() of such a call, whose scratch is free again afterwards.
void planned_gemm(Stream stream, const Device& device, Arena& arena, const Gemm& call);

/// pack_operand() with such scratch.
void pack_planned(Stream stream, Arena& arena, const GemmOperand& b, View packed);

}  // namespace fp8train::ops
