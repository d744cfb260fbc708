#pragma once
// Finds the fastest of the algorithms that cuBLASLt suggests on this GPU: measured once per kind of
// product, and stored in a file named by GPU and library version, because an algorithm is valid
// only for the library that made it. The file also makes later runs take the same algorithms, and
// so give the same bits. An algorithm whose result differs from that of the library's first choice
// is left out: split-K that drops the tail of K is the fastest (triton #2767, cuBLASLt 12 and 13).

#include <cublasLt.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_context.h"
#include "tensor/view.h"

namespace fp8train::ops::cuda {

/// One product for trying algorithms.
struct TunedProduct {
  std::string key;  ///< one line of text
  /// Submits it with an algorithm and says whether the library took it.
  std::function<bool(const cublasLtMatmulAlgo_t&)> run;
  View result;   ///< what `run` writes, or adds to
  double bound;  ///< largest difference of two right results, relative in the Frobenius norm
};

/// The largest relative difference, in the Frobenius norm, of two results of one product that add
/// in different orders. Results of 16 bits are rounded: 2^-8 for bf16 and 2^-11 for fp16, twice
/// half a unit. Sums in fp32 differ by less than 2^-12. Tensor cores of Hopper sum up FP8 products
/// in 14 bits (ops/gemm/short_accumulator.h). What 32 products lose where they are aligned is the
/// same in any order; each of the 4 instructions between promotions loses up to a unit more, 2^-13
/// and no more than 2^-10 for both results. Fast sums lose half a unit, 2^-14, in each of k / 32
/// instructions, k * 2^-19; of normal numbers, emulated, in one run, four parts or from the end,
/// they differ by a third of that. A tail of t products that is left out differs by sqrt(t / k):
/// 0.04 for 16 of 8192.
double difference_bound(DType operand, DType result, bool fast_accumulate, int64_t k);

/// The algorithms that were chosen on one GPU, and their file.
class GemmTuning {
 public:
  /// Reads the file of this GPU and library in `folder`, if there is one; lines that are not whole
  /// are left out. Throws DeviceError when the folder can be neither found nor made.
  GemmTuning(const CudaContext& context, const std::filesystem::path& folder);

  /// The algorithm stored for `key` (one line of text), if there is one.
  std::optional<cublasLtMatmulAlgo_t> find(const std::string& key) const;

  /// Tries the candidates, stores the fastest of those whose results agree with the first one's,
  /// also in the file, and returns its index; nothing if the library takes none of them. Those with
  /// other results are named in a warning. Waits for the GPU and uses memory of its own; throws
  /// DeviceError when there is none.
  std::optional<size_t> choose(const TunedProduct& product,
                               const std::vector<cublasLtMatmulAlgo_t>& candidates);

  const std::filesystem::path& file() const { return file_; }

 private:
  void write() const;

  const CudaContext* context_;
  std::filesystem::path file_;
  std::map<std::string, std::string> algorithms_;  // key -> hexadecimal digits
};

}  // namespace fp8train::ops::cuda
