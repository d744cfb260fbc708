#include "ops/exchange/shared_wire.h"

#include "base/math.h"
#include "ops/dispatch/op_table.h"
#include "ops/exchange/wire_checks.h"
#include "ops/exchange/wire_math.h"

namespace fp8train::ops {
namespace {

int64_t groups_of(int64_t count) {
  return ceil_div(count, kRangeAlignment);
}

void check_bucket(const SharedBucket& bucket) {
  const DType dtype = bucket.values.dtype;
  check(dtype == DType::f32 || dtype == DType::bf16 || is_fp8(dtype),
        "gradients that share scales are fp32, bf16, e4m3 or e5m2");
  check(bucket.tensor_of_group.dtype == DType::i32 &&
            bucket.tensor_of_group.count() >= groups_of(bucket.values.count()),
        "tensors are named by int32, one for each group");
}

void check_code_scales(const SharedBucket& bucket, int64_t tensors) {
  check(!is_fp8(bucket.values.dtype) || holds(bucket.code_scales, DType::f32, 2 * tensors),
        "codes of gradients have a scale for each tensor");
}

/// codes: [chunks, n] or [n]
void check_codes(const ConstView& codes, const ChunkRange& range, int64_t count) {
  check(is_fp8(codes.dtype), "codes that are summed are e4m3 or e5m2");
  const int64_t chunk = codes.shape.rank() == 0 ? 0 : codes.shape.back();
  check_chunk_range(range, chunk, codes.shape.rows(), count);
}

}  // namespace

void shared_amax(Stream stream, const SharedBucket& bucket, View amax) {
  check_bucket(bucket);
  check_code_scales(bucket, amax.count());
  check(amax.dtype == DType::f32, "shared_amax: an fp32 amax for each tensor");
  dispatch<&OpTable::shared_amax>(stream, bucket, amax);
}

void shared_scales(Stream stream, ConstView amax, const TensorFormat& format, float pre_scale,
                   View scales, ConstView automatic) {
  check(is_fp8(format.dtype), "shared_scales: of e4m3 or e5m2 codes");
  check(wire_scale_of(format.scale_type).bytes > 0, "shared_scales: fp32 or pow2 scales expected");
  check(amax.dtype == DType::f32 && scales.dtype == DType::f32 && scales.count() > 0 &&
            amax.count() % scales.count() == 0,
        "shared_scales: each rank's amax of each tensor, fp32");
  check(automatic.empty() || holds(automatic, DType::i64, scales.count()),
        "shared_scales: the address of a controller for each tensor");
  dispatch<&OpTable::shared_scales>(stream, amax, format, pre_scale, scales, automatic);
}

void pack_shared(Stream stream, const SharedBucket& bucket, ConstView scales, View codes,
                 const ChunkRange& range) {
  check_bucket(bucket);
  check_code_scales(bucket, scales.count());
  check_codes(codes, range, bucket.values.count());
  check(scales.dtype == DType::f32, "pack_shared: an fp32 scale for each tensor");
  dispatch<&OpTable::pack_shared>(stream, bucket, scales, codes, range);
}

void sum_shared(Stream stream, ConstView codes, View y) {
  check(
      is_fp8(y.dtype) && codes.dtype == y.dtype && y.count() > 0 && codes.count() % y.count() == 0,
      "sum_shared: whole copies of y, e4m3 or e5m2");
  dispatch<&OpTable::sum_shared>(stream, codes, y);
}

void count_largest(Stream stream, ConstView codes, ConstView tensor_of_group, ConstView automatic) {
  check(is_fp8(codes.dtype) && codes.count() > 0, "count_largest: of e4m3 or e5m2 codes");
  check(tensor_of_group.dtype == DType::i32 &&
            tensor_of_group.count() >= groups_of(codes.count()) && automatic.dtype == DType::i64 &&
            !automatic.empty(),
        "count_largest: a tensor for each group, the address of a controller for each tensor");
  dispatch<&OpTable::count_largest>(stream, codes, tensor_of_group, automatic);
}

void read_shared(Stream stream, ConstView codes, ConstView scales, float factor,
                 const SharedBucket& to, const ChunkRange& range) {
  check_bucket(to);
  if (!to.code_scales.empty()) {
    check_code_scales(to, scales.count());
  }
  check_codes(codes, range, to.values.count());
  check(!is_fp8(to.values.dtype) || to.values.dtype == codes.dtype,
        "read_shared: codes are stored in their own format");
  dispatch<&OpTable::read_shared>(stream, codes, scales, factor, to, range);
}

}  // namespace fp8train::ops
