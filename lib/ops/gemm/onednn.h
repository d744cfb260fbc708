#pragma once
// oneDNN as the cpu GEMMs use it, one level above its primitives: primitives that are pointed at
// new data for each execution, and tiles of a product that one thread computes, so that the order
// of a sum does not depend on the number of threads.

#include <oneapi/dnnl/dnnl.hpp>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "numeric/dtype.h"

namespace fp8train::ops::cpu {

dnnl::engine& onednn_engine();

int max_threads();
int thread_number();

/// Whether bf16 and FP8 operands are multiplied in bf16 units rather than widened to fp32: where
/// that is faster. FP8TRAIN_CPU_GEMM=fp32|bf16 decides otherwise, bf16 where the processor can.
bool uses_bf16_units();

/// A primitive with memory objects that are pointed at new data for each execution.
class Execution {
 public:
  void add(int argument, const dnnl::memory::desc& description);
  /// `data` in the order of add(); null for what was not added.
  void run(const dnnl::matmul& primitive, std::initializer_list<const void*> data);

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

/// Within it oneDNN neither plans for nor uses more than the calling thread.
class SingleThreadScope {
 public:
  SingleThreadScope();
  ~SingleThreadScope();
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;

 private:
  int threads_;
};

/// a [rows, depth] times op(b) [depth, columns] to fp32 [rows, columns], packed.
struct TileShape {
  int64_t rows, columns, depth;
  int64_t a_stride, b_stride;  ///< of what is stored
  dnnl::memory::data_type type;
  bool b_transposed;
  int threads;  ///< that may compute such tiles at the same time

  bool operator==(const TileShape&) const = default;
};

struct TileShapeHash {
  size_t operator()(const TileShape& shape) const;
};

/// One tile; any number of threads may run it, each by its number.
class TileProduct {
 public:
  explicit TileProduct(const TileShape& shape);

  void run(int thread, const void* a, const void* b, float* product, void* scratchpad) {
    executions_[static_cast<size_t>(thread)].run(primitive_, {a, b, product, scratchpad});
  }
  size_t scratchpad_bytes() const { return scratchpad_bytes_; }

 private:
  dnnl::matmul primitive_;
  std::vector<Execution> executions_;
  size_t scratchpad_bytes_ = 0;
};

/// body(index) for 0 .. count, over the threads; within each, oneDNN runs on that thread alone.
/// Throws InternalError after the loop when a call threw.
void for_each_tile(int64_t count, const std::function<void(int64_t)>& body);

constexpr size_t kCachedProducts = 1024;  // shapes; generation meets a new one per prompt length

/// The product of that description, made when it is first asked for. References stay valid until
/// `kCachedProducts` others have been asked for.
template <typename Product, typename Key, typename Hash>
Product& cached(std::unordered_map<Key, std::unique_ptr<Product>, Hash>& cache, const Key& key) {
  const auto found = cache.find(key);
  if (found != cache.end()) {
    return *found->second;
  }
  if (cache.size() >= kCachedProducts) {
    cache.clear();
  }
  return *cache.emplace(key, std::make_unique<Product>(key)).first->second;
}

/// Folds `part` into a hash.
inline void mix(size_t& hash, uint64_t part) {
  hash = (hash ^ part) * 0x9E3779B97F4A7C15ULL;
  hash ^= hash >> 32;
}

}  // namespace fp8train::ops::cpu
