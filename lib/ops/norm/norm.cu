// RMSNorm, LayerNorm and the RMSNorm of heads. The kernels of norm_forward.cuh and
// norm_backward.cuh take rows of bf16 in packs of 16 bytes, those of norm_any.cuh everything else.

#include <algorithm>

#include "ops/dispatch/cuda_operations.h"
#include "ops/norm/norm_backward.cuh"
#include "ops/norm/norm_cast.cuh"
#include "ops/norm/norm_cast_rows.cuh"
#include "ops/norm/norm_forward.cuh"

namespace fp8train::ops::cuda {
namespace {

/// Threads of a team that holds a row in `vecs` packs each; more than kNormMostThreads: too long.
int64_t team_of(int n, int vecs) {
  const int64_t threads = ceil_div(n, int64_t{vecs} * kVec8);
  int64_t team = 1;
  while (team < threads && team < kWarp) {
    team *= 2;
  }
  return threads <= kWarp ? team : ceil_div(threads, kWarp) * kWarp;
}

/// Teams of a block.
int64_t teams_of(int64_t team) {
  return team < kNormThreads ? kNormThreads / team : 1;
}

/// Threads of a block that has a row at a time.
unsigned any_threads(int n) {
  const int64_t threads = ceil_div(ceil_div(n, kVec8), kWarp) * kWarp;
  return static_cast<unsigned>(threads < kNormThreads ? threads : kNormThreads);
}

/// Whether all rows of a call can be read and written in packs.
bool is_packed(const NormForwardRows& call) {
  return call.n % kVec8 == 0 && is_aligned(call.x.data) && is_aligned(call.y.data) &&
         is_aligned(call.weight.data) && is_aligned(call.bias.data) &&
         is_aligned(call.original.data) && is_aligned(call.residual.delta.data) &&
         is_aligned(call.residual.sum.data) && call.rows.stride % kVec8 == 0;
}
bool is_packed(const NormBackwardRows& call) {
  return call.n % kVec8 == 0 && is_aligned(call.x.data) && is_aligned(call.dy.data) &&
         is_aligned(call.dx.data) && is_aligned(call.weight.data) &&
         is_aligned(call.scratch.data) && call.rows.stride % kVec8 == 0;
}

/// Starts the kernel for the rows: in packs of bf16, or that for any rows.
void run_forward(const Stream& stream, const NormForwardRows& call) {
  const bool packed = is_packed(call);
  const int64_t team = team_of(call.n, kForwardVecs);
  if (!packed || call.x.dtype != DType::bf16 || call.y.dtype != DType::bf16 ||
      team > kNormMostThreads) {
    FloatTypes::check(call.x.dtype);
    FloatTypes::check(call.y.dtype);
    launch(stream, {blocks_for(stream, call.count, 1), any_threads(call.n)},
           norm_forward_any_kernel, call, packed);
    return;
  }
  const int64_t teams = teams_of(team);
  launch(stream, {blocks_for(stream, call.count, teams), static_cast<unsigned>(teams * team)},
         call.mean.empty() ? norm_forward_kernel<false> : norm_forward_kernel<true>, call,
         static_cast<int>(team));
}

/// Starts norm_backward_kernel with a block for each of `chunks` chunks of rows.
template <bool kLayer>
void launch_backward(const Stream& stream, const NormBackwardRows& call, unsigned chunks,
                     int64_t team) {
  const int64_t teams = teams_of(team);
  const int64_t columns = teams == 1 ? 0 : teams * call.n;
  launch(
      stream,
      {chunks, static_cast<unsigned>(teams * team), static_cast<size_t>(columns) * sizeof(float)},
      norm_backward_kernel<kLayer>, call, static_cast<int>(team));
}

/// Starts the backward kernel for the rows: in packs of bf16, or that for any rows.
void run_backward(const Stream& stream, const NormBackwardRows& call) {
  constexpr size_t kMostBytes = size_t{96} << 10;  // every GPU has 99 KiB
  const auto chunks = static_cast<unsigned>(ceil_div(call.count, call.chunk_rows));
  const bool packed = is_packed(call);
  const bool layer = !call.mean.empty();
  const int64_t team = team_of(call.n, layer ? kBackwardVecs<true> : kBackwardVecs<false>);
  if (packed && call.x.dtype == DType::bf16 && call.dy.dtype == DType::bf16 &&
      call.dx.dtype == DType::bf16 && team <= kNormMostThreads) {
    layer ? launch_backward<true>(stream, call, chunks, team)
          : launch_backward<false>(stream, call, chunks, team);
    return;
  }
  for (const DType type : {call.x.dtype, call.dy.dtype, call.dx.dtype}) {
    FloatTypes::check(type);
  }
  const size_t bytes = static_cast<size_t>(call.n) * sizeof(float) * (layer ? 2 : 1);
  const bool in_shared = bytes <= kMostBytes;
  launch(stream, {chunks, any_threads(call.n), in_shared ? bytes : 0}, norm_backward_any_kernel,
         call, packed, in_shared);
}

/// partial: [chunks, n]; target[c] (+)= the sum of column c: warp w adds chunks w, w + 8, ... in
/// order, then the warps are added in order.
__global__ void __launch_bounds__(kBlock)
    add_norm_partial_kernel(const float* partial, int64_t chunks, int n, float* target,
                            bool overwrite) {
  constexpr int kWarps = kBlock / kWarp;
  FP8TRAIN_SHARED_ARRAY(float, sums, kBlock);
  const int c = static_cast<int>(blockIdx.x) * kWarp + lane_index();
  float sum = 0.0F;
  if (c < n) {
#pragma unroll 8
    for (int64_t chunk = warp_index(); chunk < chunks; chunk += kWarps) {
      sum += partial[chunk * n + c];
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp_index() != 0 || c >= n) {
    return;
  }
  for (int warp = 1; warp < kWarps; ++warp) {
    sum += sums[warp * kWarp + lane_index()];
  }
  target[c] = overwrite ? sum : target[c] + sum;
}

/// Starts add_norm_partial_kernel.
void add_partial_sums(const Stream& stream, const float* partial, int64_t chunks, int n,
                      const View& target, bool overwrite) {
  launch(stream, {static_cast<unsigned>(ceil_div(n, kWarp)), kBlock}, add_norm_partial_kernel,
         partial, chunks, n, target.as<float>(), overwrite);
}

/// Computes the result of a norm again, from its statistics, and casts it. A result in bf16 from
/// bf16 is also written to `y` here, unless that is null; run_forward() has written any other.
void cast_norm(const Stream& stream, const NormForward& norm, void* y) {
  const int64_t n = norm.x.shape.back();
  const auto* const weight = norm.weight.as<float>();
  const auto* const bias = norm.bias.as<float>();
  const auto* const mean = norm.mean.as<float>();
  const auto* const rstd = norm.rstd.as<float>();
  const TileCast cast = {
      .rows = norm.x.shape.rows(),
      .width = n,
      .sink = norm.cast,
      .aligned = is_aligned(norm.x.data) && is_aligned(weight) && is_aligned(bias),
      .y = y};
  if (norm.x.dtype == DType::bf16 && norm.y.dtype == DType::bf16) {
    return cast_tiles(stream, NormSource{norm.x.as<bf16>(), weight, bias, mean, rstd, n}, cast);
  }
  const AnyNormSource source = {
      const_cast<void*>(norm.x.data), norm.x.dtype, norm.y.dtype, weight, bias, mean, rstd, n};
  cast_tiles(stream, source, cast);
}

/// Casts the result of a norm in the pass that makes it. Returns false where other kernels have to.
bool run_cast(const Stream& stream, const NormForwardRows& call) {
  const QuantizedTensor& out = call.cast.out;
  const NormCodes codes = {out.rowwise.codes.as<uint8_t>(), out.columnwise.codes.as<uint8_t>(),
                           out.format().dtype};
  if (!casts_in_one_pass(call) || !is_packed(call) || !is_aligned(codes.rowwise, kVec8) ||
      !is_aligned(codes.columnwise)) {
    return false;
  }
  Fp8Types::check(codes.type);
  const int64_t team = team_of(call.n, kForwardVecs);
  const int64_t threads = std::max(int64_t{kWarp}, std::min(teams_of(team), kNormStripRows) * team);
  const int64_t bytes = codes.columnwise == nullptr ? 0 : kNormStripRows * call.n;
  launch(stream,
         {cast_blocks(stream, ceil_div(call.count, kNormStripRows), 1),
          static_cast<unsigned>(threads), static_cast<size_t>(bytes)},
         call.mean.empty() ? norm_cast_kernel<false> : norm_cast_kernel<true>, call,
         static_cast<int>(team), codes, cast_call(call.cast));
  return true;
}

}  // namespace

void norm_forward(Stream stream, const NormForward& norm) {
  NormForwardRows call(norm);
  if (norm.cast.out.empty()) {
    return run_forward(stream, call);
  }
  if (run_cast(stream, call)) {
    return;
  }
  const bool cast_writes = norm.x.dtype == DType::bf16 && norm.y.dtype == DType::bf16;
  call.y.data = cast_writes ? nullptr : norm.y.data;
  call.cast.amax = nullptr;
  run_forward(stream, call);
  NormForward made = norm;
  made.x = norm.residual.empty() ? norm.x : norm.residual.sum;
  cast_norm(stream, made, cast_writes ? norm.y.data : nullptr);
}

void norm_backward(Stream stream, const NormBackward& norm) {
  const NormBackwardRows call(norm);
  run_backward(stream, call);
  const int64_t chunks = ceil_div(call.count, call.chunk_rows);
  const auto* const partial = norm.scratch.as<float>();
  const auto add = [&](const float* sums, const View& to) {
    add_partial_sums(stream, sums, chunks, call.n, to, norm.overwrite_weight_grad);
  };
  add(partial, norm.weight_grad);
  if (!norm.bias_grad.empty()) {
    add(partial + chunks * call.n, norm.bias_grad);
  }
}

}  // namespace fp8train::ops::cuda
