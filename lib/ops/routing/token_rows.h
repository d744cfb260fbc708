#pragma once
// The rows of tokens on their way to experts and back. An expert has `capacity` slots for rows, or
// its own number, which its choices take in the order of tokens; those beyond them are dropped.

#include <cstdint>

#include "device/stream.h"
#include "tensor/view.h"

namespace fp8train::ops {

/// The arguments of assign_slots().
struct SlotAssignment {
  ConstView chosen;  ///< int32 [rows, k]: the experts of each token, different ones
  int64_t experts = 0, capacity = 0;
  /// int32 [experts + 1]: the first slot of each expert, and the end of the last. Empty: expert *
  /// capacity.
  ConstView begins = {};
  View slots;  ///< int32 [rows, k]: the slot of a choice, the first of its expert + i; -1: dropped
  View sources;  ///< int32 [all slots]: the choice of a slot, row * k + j; -1: unused
};

void assign_slots(Stream stream, const SlotAssignment& call);

/// y[slot] = weight of the choice * x[its row]; zeros for an unused slot. x: [rows, C], y: [slots,
/// C], fp32, bf16 or fp16; weights: fp32 [rows, k]. With `weighted` false the weights are 1, and
/// only the shape is read.
void send_rows(Stream stream, ConstView x, ConstView sources, ConstView weights, bool weighted,
               View y);

/// The arguments of return_rows().
struct ReturnedRows {
  ConstView x;        ///< [slots, C], fp32, bf16 or fp16
  ConstView slots;    ///< int32 [rows, k]
  ConstView weights;  ///< fp32 [rows, k]; empty: 1
  ConstView addend;   ///< fp32 [rows, C]; may be empty
  bool adds = false;  ///< y is added to, and not overwritten
  View y;             ///< [rows, C], of the type of x
};

/// y = y + addend + sum over j of weight * x[slot], in this order, rounded once; without the terms
/// that are not there.
void return_rows(Stream stream, const ReturnedRows& call);

/// products[row, j] = <a[row], b[slots[row, j]]>, 0 for a choice that was dropped. a: [rows, C], b:
/// [slots, C], of one type; products: fp32 [rows, k].
void dot_rows(Stream stream, ConstView a, ConstView b, ConstView slots, View products);

}  // namespace fp8train::ops
