#pragma once
// Runs the blocks of a kernel on the calling thread, each thread of a block as a fiber that yields
// at barriers and warp exchanges. What it checks beyond running the code (an error ends the test
// with a message):
// - all threads of a block that are still running wait at the same barrier;
// - all lanes named in the mask of a warp exchange take part in it;
// - no kernel reads shared memory that its block did not write: it starts as NaN bits, and each
//   array is an allocation of its own, so that AddressSanitizer sees an overrun of one element.
// The order in which threads of a block run is FP8TRAIN_SHIM_ORDER=forward|reverse|shuffled: a
// missing barrier shows as a difference between orders. So does a missing wait for a copy that runs
// next to the arithmetic (cp.async): it arrives as late as it may, at once, or one or the other.

#include <cstddef>
#include <cstdint>
#include <functional>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

namespace fp8train::shim {

struct ThreadState {
  dim3 thread_index, block_index, block_extent, grid_extent;
};

/// Of the fiber that runs now; only inside a kernel.
const ThreadState& current_thread();

/// Position within the warp, 0..31.
int lane();

/// Waits for all threads of the block that have not returned; the OR of their predicates.
int barrier(const void* site, int predicate);

/// One value from each lane in `mask`, seen by all of them.
class WarpExchange {
 public:
  WarpExchange(unsigned mask, uint64_t value);
  /// The lane's own value where `lane` is not in the mask, as hardware leaves it undefined.
  uint64_t of_lane(int lane) const;
  /// Bits of the lanes in the mask whose value is not 0.
  unsigned ballot() const;

 private:
  uint64_t values_[32] = {};
  unsigned mask_;
};

/// The block's array declared at `site`, allocated by the first thread that comes by.
void* shared_array(const void* site, size_t bytes);

/// Dynamic shared memory of the launch.
void* dynamic_shared();

/// A copy by the thread that runs now, of zeros where `from` is null; it takes place now or in
/// finish_copies, which every thread calls for its own.
void copy_later(void* to, const void* from, size_t bytes);
void finish_copies();

/// What a block of any GPU that the library is built for may have (sm_89 has the least).
constexpr size_t kMaxDynamicSharedBytes = size_t{99} << 10;

/// Calls `thread` for every thread of every block. Nothing runs where an extent is 0.
void run_blocks(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                const std::function<void()>& thread);

}  // namespace fp8train::shim
