#pragma once
// oneDNN as the cpu GEMMs use it, one level above its primitives: primitives that are pointed at
// new data for each execution, and tiles of a product that one thread computes, so that the order
// of a sum does not depend on the number of threads.

#include <oneapi/dnnl/dnnl.hpp>

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <vector>

#include "base/not_copied.h"
#include "numeric/dtype.h"

namespace fp8train::ops::cpu {

/// Returns oneDNN's engine for the cpu.
dnnl::engine& onednn_engine();

/// Returns the number of threads of a parallel loop.
int max_threads();
/// Returns the number of the calling thread in a parallel loop.
int thread_number();

/// Within it oneDNN neither plans for nor uses more than the calling thread.
class SingleThreadScope : NotCopied {
 public:
  SingleThreadScope();
  ~SingleThreadScope();

 private:
  int threads_;
};

/// body(index) over the threads: each takes the next index when it is done with one, and oneDNN
/// runs on that thread alone. Throws InternalError after the loop when a call threw.
void for_each_by_one_thread(int64_t count, const std::function<void(int64_t)>& body);

/// Whether bf16 and FP8 operands are multiplied in bf16 units rather than widened to fp32: where
/// that is faster. FP8TRAIN_CPU_GEMM=fp32|bf16 decides otherwise, bf16 where the processor can.
bool uses_bf16_units();

/// Whether int8 codes are multiplied as they are, with exact sums: on processors with AVX512-VNNI,
/// where FP8TRAIN_CPU_GEMM is not set.
bool uses_int8_units();

/// oneDNN's name of a type that operands are multiplied in: fp32, bf16 or int8.
dnnl::memory::data_type onednn_type(DType type);

/// A primitive with memory objects that are pointed at new data for each execution.
class Execution {
 public:
  void add(int argument, const dnnl::memory::desc& description);
  /// `data` in the order of add(); null for what was not added.
  void run(const dnnl::primitive& primitive, std::initializer_list<const void*> data);

 private:
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

/// Rows of `columns` elements, `stride` apart.
dnnl::memory::desc row_major(int64_t rows, int64_t columns, dnnl::memory::data_type type,
                             int64_t stride);

/// A matrix [rows, columns] stored as it is or transposed; `stride` between what is stored as rows.
dnnl::memory::desc stored_matrix(int64_t rows, int64_t columns, dnnl::memory::data_type type,
                                 bool transposed, int64_t stride);

/// The description of c = a b with these attributes. If oneDNN has no implementation for it, throws
/// dnnl::error, or with `may_be_empty` returns one that is false. An empty matrix is an error. For
/// oneDNN 2 and 3.
dnnl::matmul::primitive_desc describe_product(const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b,
                                              const dnnl::memory::desc& c,
                                              const dnnl::primitive_attr& attributes,
                                              bool may_be_empty);
/// Whether it is oneDNN's blocked kernel ("brg") for it.
bool is_blocked(const dnnl::matmul::primitive_desc& description);

/// The layout in which oneDNN's blocked kernel reads op(b) [k, n] without a copy of its own; null
/// where it has no such kernel.
const dnnl::memory::desc* packed_layout(int64_t k, int64_t n, dnnl::memory::data_type type);

constexpr int64_t kTileRows = 128;
constexpr int64_t kTileColumns = 256;
constexpr int64_t kTileElements = kTileRows * kTileColumns;

/// The key of a TiledProduct: a [m, k] times op(b) [k, n], both packed.
struct TiledKey {
  int64_t m, n, k;
  int64_t depth;  ///< depth of a piece of K
  dnnl::memory::data_type type;
  bool b_transposed;
  int threads;

  auto operator<=>(const TiledKey&) const = default;
};

/// A tile of the result, and the thread that computes it.
struct ProductTile {
  int thread;
  int64_t row, column;  ///< position of its first element
  int64_t rows, columns;
};

/// A product in tiles of at most kTileRows by kTileColumns and in pieces of K: up to eight shapes,
/// by what of M, N and K is the last part.
class TiledProduct {
 public:
  explicit TiledProduct(const TiledKey& key);

  int64_t pieces() const { return pieces_; }
  /// Returns the bytes of scratch memory of all threads together.
  size_t scratchpad_bytes() const {
    return 1 + scratchpad_stride_ * static_cast<size_t>(key_.threads);
  }
  /// body(tile) for all tiles, by for_each_by_one_thread().
  void for_each_tile(const std::function<void(const ProductTile&)>& body) const;
  /// Computes the fp32 product of a tile over one piece of K, packed. a, b: the whole operands.
  void run(const ProductTile& tile, int64_t piece, const void* a, const void* b, float* product,
           void* scratchpads);

 private:
  struct Shape {
    dnnl::matmul primitive;
    std::vector<Execution> executions;  ///< one for each thread
  };
  Shape make_shape(int64_t rows, int64_t columns, int64_t depth);

  TiledKey key_;
  int64_t row_tiles_, column_tiles_, pieces_;
  std::array<Shape, 8> shapes_;
  size_t scratchpad_stride_ = 0;
};

constexpr size_t kCachedProducts = 1024;  // shapes; generation meets a new one per prompt length

/// The product of that description, made when it is first asked for. References stay valid until
/// `kCachedProducts` others have been asked for.
template <typename Product, typename Key>
Product& cached(std::map<Key, std::unique_ptr<Product>>& cache, const Key& key) {
  const auto found = cache.find(key);
  if (found != cache.end()) {
    return *found->second;
  }
  if (cache.size() >= kCachedProducts) {
    cache.clear();
  }
  return *cache.emplace(key, std::make_unique<Product>(key)).first->second;
}

}  // namespace fp8train::ops::cpu
