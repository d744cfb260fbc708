#include "ops/storage/storage.h"

#include "ops/dispatch/op_table.h"
#include "ops/support/checks.h"

namespace fp8train::ops {
void store(Stream stream, const Store& call) {
  check(is_float_type(call.x.dtype), "store: x must be fp32, bf16 or fp16");
  check_stored(call.to, call.x.count(), !call.add && call.skip == nullptr);
  check(call.to.format.rounding == Rounding::nearest_even, "store: rounds to nearest even");
  check(call.automatic == nullptr || codec_of(call.to.format) == Codec::tensor,
        "store: automatic scaling is of one scale for the tensor");
  check(call.step == CastStep::all || codec_of(call.to.format) == Codec::tensor,
        "store: steps are of one scale for the tensor");
  dispatch<&OpTable::store>(stream, call);
}

void read_stored(Stream stream, const Encoded& x, View y) {
  check(is_float_type(y.dtype), "read_stored: y must be fp32, bf16 or fp16");
  check_stored(x, y.count(), true);
  dispatch<&OpTable::read_stored>(stream, x, y);
}

void count_at_maximum(Stream stream, ConstView codes, AutoScale* automatic) {
  check(is_fp8(codes.dtype) && automatic != nullptr, "count_at_maximum: of FP8 codes");
  dispatch<&OpTable::count_at_maximum>(stream, codes, automatic);
}

void update_auto_scales(Stream stream, const AutoScale* of_ranks, int64_t ranks, AutoScale* scales,
                        int64_t count, const int32_t* skip) {
  check(of_ranks != nullptr && scales != nullptr && skip != nullptr && ranks > 0 && count > 0,
        "update_auto_scales: the scales of each rank");
  dispatch<&OpTable::update_auto_scales>(stream, of_ranks, ranks, scales, count, skip);
}

}  // namespace fp8train::ops
