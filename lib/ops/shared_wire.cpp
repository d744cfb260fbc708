#include "ops/shared_wire.h"

#include "base/trace.h"
#include "ops/checks.h"
#include "ops/op_table.h"
#include "ops/wire_math.h"

namespace fp8train::ops {
namespace {

void check_bucket(const SharedBucket& bucket, int64_t tensors) {
  const DType dtype = bucket.values.dtype;
  check(dtype == DType::f32 || dtype == DType::bf16 || is_fp8(dtype),
        "gradients that share scales are fp32, bf16, e4m3 or e5m2");
  check(!is_fp8(dtype) || holds(bucket.kept_scales, DType::f32, 2 * tensors),
        "codes of gradients have a scale for each tensor");
  check(bucket.tensor_of_group.dtype == DType::i32, "tensors are named by int32");
}

int64_t groups_of(int64_t count) {
  return (count + kStoredGroup - 1) / kStoredGroup;
}

}  // namespace

void shared_amax(Stream stream, const SharedBucket& bucket, View amax) {
  check_bucket(bucket, amax.count());
  check(amax.dtype == DType::f32 &&
            bucket.tensor_of_group.count() == groups_of(bucket.values.count()),
        "shared_amax: an fp32 amax for each tensor, a tensor for each group");
  const TraceSpan span("shared_amax");
  op_table(stream).shared_amax(stream, bucket, amax);
}

void shared_scales(Stream stream, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales) {
  check(is_fp8(format.dtype), "shared_scales: of e4m3 or e5m2 codes");
  check(amax.dtype == DType::f32 && scales.dtype == DType::f32 && scales.count() > 0 &&
            amax.count() % scales.count() == 0,
        "shared_scales: each rank's amax of each tensor, fp32");
  const TraceSpan span("shared_scales");
  op_table(stream).shared_scales(stream, amax, format, pre_scale, scales);
}

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes) {
  check_bucket(bucket, scales.count());
  check(scales.dtype == DType::f32 && is_fp8(codes.dtype) &&
            codes.count() >= bucket.values.count() &&
            bucket.tensor_of_group.count() == groups_of(bucket.values.count()),
        "pack_shared: room for all codes, a scale for each tensor");
  const TraceSpan span("pack_shared");
  op_table(stream).pack_shared(stream, bucket, scales, codes);
}

void sum_shared(Stream stream, ConstView codes, View y) {
  check(
      is_fp8(y.dtype) && codes.dtype == y.dtype && y.count() > 0 && codes.count() % y.count() == 0,
      "sum_shared: whole copies of y, e4m3 or e5m2");
  const TraceSpan span("sum_shared");
  op_table(stream).sum_shared(stream, codes, y);
}

void read_shared(Stream stream, ConstView codes, ConstView scales, float factor, int64_t first,
                 const SharedBucket& to) {
  check_bucket(to, scales.count());
  check(is_fp8(codes.dtype) && codes.count() >= to.values.count() && first % kStoredGroup == 0,
        "read_shared: codes of all values, from a whole group on");
  check(!is_fp8(to.values.dtype) || (first == 0 && to.values.dtype == codes.dtype),
        "read_shared: codes are kept of a whole bucket, in their own format");
  check(to.tensor_of_group.count() * kStoredGroup >= first + to.values.count(),
        "read_shared: a tensor for each group");
  const TraceSpan span("read_shared");
  op_table(stream).read_shared(stream, codes, scales, factor, first, to);
}

}  // namespace fp8train::ops
