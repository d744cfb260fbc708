#pragma once
// Finds the fastest of the algorithms that cuBLASLt suggests on this GPU: measured once per kind of
// product, and stored in a file named by GPU and library version, because an algorithm is valid
// only for the library that made it. The file also makes later runs take the same algorithms, and
// so give the same bits.

#include <cublasLt.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_context.h"

namespace fp8train::ops::cuda {

/// The algorithms that were chosen on one GPU, and their file.
class GemmTuning {
 public:
  /// Reads the file of this GPU and library in `folder`, if there is one; lines that are not whole
  /// are left out. Throws DeviceError when the folder can be neither found nor made.
  GemmTuning(const CudaContext& context, const std::filesystem::path& folder);

  /// The algorithm stored for `key` (one line of text), if there is one.
  std::optional<cublasLtMatmulAlgo_t> find(const std::string& key) const;

  /// Tries the candidates with `run`, keeps the fastest, also in the file, and returns its index.
  /// `run` submits one product and says whether the library took it. Waits for the GPU and uses
  /// memory of its own; throws DeviceError when there is none.
  size_t choose(const std::string& key, const std::vector<cublasLtMatmulAlgo_t>& candidates,
                const std::function<bool(const cublasLtMatmulAlgo_t&)>& run);

  const std::filesystem::path& file() const { return file_; }

 private:
  void write() const;

  const CudaContext* context_;
  std::filesystem::path file_;
  std::map<std::string, std::string> algorithms_;  // key -> hexadecimal digits
};

}  // namespace fp8train::ops::cuda
