#include "block_runner.h"

#include <sys/mman.h>

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace fp8train::shim {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr unsigned kMaxThreads = 1024;
constexpr int kWarp = 32;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "cuda shim: %s\n", what);
  std::abort();
}

enum class Order { forward, reverse, shuffled };

constexpr std::pair<const char*, Order> kOrders[] = {
    {"forward", Order::forward}, {"reverse", Order::reverse}, {"shuffled", Order::shuffled}};

Order thread_order() {
  static const Order order = [] {
    const char* value = std::getenv("FP8TRAIN_SHIM_ORDER");
    for (const auto& [name, named] : kOrders) {
      if (std::strcmp(value == nullptr ? "forward" : value, name) == 0) {
        return named;
      }
    }
    fail("FP8TRAIN_SHIM_ORDER: expected forward, reverse or shuffled");
  }();
  return order;
}

/// Stacks for the threads of a block, each with an unmapped page below it; reused from block to
/// block.
class Stacks {
 public:
  Stacks() {
    const size_t page = 4096;
    memory_ = static_cast<char*>(mmap(nullptr, kMaxThreads * kStride, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (memory_ == MAP_FAILED) {
      fail("no memory for the stacks of a block");
    }
    for (unsigned i = 0; i < kMaxThreads; ++i) {
      mprotect(memory_ + i * kStride, page, PROT_NONE);
    }
  }
  ~Stacks() { munmap(memory_, kMaxThreads * kStride); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* bottom(unsigned thread) const { return memory_ + thread * kStride + 4096; }

 private:
  static constexpr size_t kStride = kStackBytes + 4096;
  char* memory_;
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  enum class Wait { none, barrier, warp, done };
  ThreadState state;
  context::fcontext_t continuation = nullptr;
  void* fake_stack = nullptr;  // AddressSanitizer's
  Wait wait = Wait::none;
  const void* site = nullptr;
  std::vector<Copy> copies;  // started, not waited for
};

/// One exchange of a set of lanes: values gather until all have come; then each takes its copy, and
/// the last one to leave makes space for the next exchange of that set.
struct Exchange {
  uint64_t values[kWarp] = {};
  unsigned arrived = 0;
  unsigned left = 0;
};

class BlockRunner {
 public:
  BlockRunner() { fibers_.reserve(kMaxThreads); }  // a waiting fiber holds a reference into it

  void run(dim3 grid, dim3 block_index, dim3 block, size_t dynamic_bytes,
           const std::function<void()>& thread);

  Fiber& current() { return fibers_[current_]; }
  int barrier(const void* site, int predicate);
  void exchange(unsigned mask, uint64_t value, uint64_t* values);
  void copy_later(const Copy& copy);
  void finish_copies();
  void* shared_array(const void* site, size_t bytes);
  void* dynamic_shared() { return dynamic_.get(); }

 private:
  static void enter(context::transfer_t transfer);
  void resume(unsigned index);
  void yield();
  void release_barrier();

  const std::function<void()>* thread_ = nullptr;
  Stacks stacks_;
  std::vector<Fiber> fibers_;
  std::vector<unsigned> order_;
  unsigned current_ = 0;
  unsigned done_ = 0;
  unsigned at_barrier_ = 0;
  int barrier_or_ = 0;
  int barrier_result_ = 0;
  uint64_t progress_ = 0;  // arrivals at and departures from warp exchanges
  std::map<std::pair<unsigned, unsigned>, Exchange> exchanges_;  // by warp and mask
  std::map<const void*, std::unique_ptr<char[]>> shared_;
  std::unique_ptr<char[]> dynamic_;
  context::fcontext_t scheduler_ = nullptr;
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_bottom_ = nullptr;
  size_t scheduler_bytes_ = 0;
  std::mt19937 random_{1};
};

thread_local BlockRunner* running = nullptr;

/// NaN bits in every float, bf16 and fp16.
std::unique_ptr<char[]> poisoned(size_t bytes) {
  std::unique_ptr<char[]> memory(new char[std::max<size_t>(bytes, 1)]);
  std::memset(memory.get(), 0xFF, bytes);
  return memory;
}

void BlockRunner::enter(context::transfer_t transfer) {
  BlockRunner& runner = *static_cast<BlockRunner*>(transfer.data);
  runner.scheduler_ = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &runner.scheduler_bottom_, &runner.scheduler_bytes_);
#endif
  // Once for each block: a fiber, and what AddressSanitizer keeps of it, serves them all.
  while (true) {
    (*runner.thread_)();
    runner.current().wait = Fiber::Wait::done;
    runner.done_ += 1;
    runner.yield();
  }
}

void BlockRunner::resume(unsigned index) {
  current_ = index;
  Fiber& fiber = fibers_[index];
  fiber.wait = Fiber::Wait::none;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, stacks_.bottom(index), kStackBytes);
#endif
  const context::transfer_t back = context::jump_fcontext(fiber.continuation, this);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
  fiber.continuation = back.fctx;
}

/// Back to the scheduler until it resumes this fiber.
void BlockRunner::yield() {
  [[maybe_unused]] Fiber& fiber = current();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_bottom_, scheduler_bytes_);
#endif
  const context::transfer_t back = context::jump_fcontext(scheduler_, this);
  scheduler_ = back.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_bottom_, &scheduler_bytes_);
#endif
}

int BlockRunner::barrier(const void* site, int predicate) {
  Fiber& fiber = current();
  fiber.site = site;
  fiber.wait = Fiber::Wait::barrier;
  at_barrier_ += 1;
  barrier_or_ |= predicate;
  yield();
  return barrier_result_;
}

void BlockRunner::release_barrier() {
  const void* site = nullptr;
  for (Fiber& fiber : fibers_) {
    if (fiber.wait != Fiber::Wait::barrier) {
      continue;
    }
    if (site != nullptr && fiber.site != site) {
      fail("threads of one block wait at different __syncthreads()");
    }
    site = fiber.site;
    fiber.wait = Fiber::Wait::none;
  }
  barrier_result_ = barrier_or_;
  barrier_or_ = 0;
  at_barrier_ = 0;
}

void BlockRunner::exchange(unsigned mask, uint64_t value, uint64_t* values) {
  const unsigned warp = current_ / kWarp;
  const unsigned bit = 1U << (current_ % kWarp);
  if ((mask & bit) == 0) {
    fail("a lane calls a warp exchange whose mask leaves it out");
  }
  Exchange& exchange = exchanges_[{warp, mask}];
  while ((exchange.arrived & bit) != 0) {  // the last exchange of these lanes is not over yet
    current().wait = Fiber::Wait::warp;
    yield();
  }
  exchange.values[current_ % kWarp] = value;
  exchange.arrived |= bit;
  progress_ += 1;
  while (exchange.arrived != mask) {
    current().wait = Fiber::Wait::warp;
    yield();
  }
  std::copy_n(exchange.values, kWarp, values);
  exchange.left |= bit;
  progress_ += 1;
  if (exchange.left == mask) {
    exchange.arrived = 0;
    exchange.left = 0;
  }
}

void perform(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  } else {
    std::memset(copy.to, 0, copy.bytes);
  }
}

void BlockRunner::copy_later(const Copy& copy) {
  const Order order = thread_order();
  if (order == Order::reverse || (order == Order::shuffled && random_() % 2 == 0)) {
    perform(copy);
  } else {
    current().copies.push_back(copy);
  }
}

void BlockRunner::finish_copies() {
  for (const Copy& copy : current().copies) {
    perform(copy);
  }
  current().copies.clear();
}

void* BlockRunner::shared_array(const void* site, size_t bytes) {
  std::unique_ptr<char[]>& memory = shared_[site];
  if (memory == nullptr) {
    memory = poisoned(bytes);
  }
  return memory.get();
}

void BlockRunner::run(dim3 grid, dim3 block_index, dim3 block, size_t dynamic_bytes,
                      const std::function<void()>& thread) {
  const Order order = thread_order();
  const unsigned count = block.x * block.y * block.z;
  if (count == 0 || count > kMaxThreads) {
    fail("a block has between 1 and 1024 threads");
  }
  thread_ = &thread;
  if (fibers_.size() < count) {
    fibers_.resize(count);
  }
  order_.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    Fiber& fiber = fibers_[i];
    fiber.state = {
        {i % block.x, i / block.x % block.y, i / (block.x * block.y)}, block_index, block, grid};
    fiber.wait = Fiber::Wait::none;
    fiber.site = nullptr;
    if (fiber.continuation == nullptr) {
      fiber.continuation =
          context::make_fcontext(stacks_.bottom(i) + kStackBytes, kStackBytes, enter);
    }
    order_[i] = order == Order::reverse ? count - 1 - i : i;
  }
  exchanges_.clear();
  shared_.clear();
  dynamic_ = poisoned(dynamic_bytes);
  done_ = 0;
  at_barrier_ = 0;
  barrier_or_ = 0;
  while (done_ < count) {
    if (order == Order::shuffled) {
      std::shuffle(order_.begin(), order_.end(), random_);
    }
    const uint64_t before = progress_ + done_ + at_barrier_;
    for (const unsigned index : order_) {
      const Fiber::Wait wait = fibers_[index].wait;
      if (wait != Fiber::Wait::done && wait != Fiber::Wait::barrier) {
        resume(index);
      }
    }
    if (at_barrier_ > 0 && done_ + at_barrier_ == count) {
      release_barrier();
    } else if (progress_ + done_ + at_barrier_ == before) {
      fail(
          "threads wait for each other: a warp exchange lacks a lane of its mask, or not all "
          "threads reach a barrier");
    }
  }
  shared_.clear();
  dynamic_.reset();
}

}  // namespace

const ThreadState& current_thread() {
  return running->current().state;
}

int lane() {
  const ThreadState& thread = current_thread();
  const unsigned index = thread.thread_index.x +
                         thread.block_extent.x * (thread.thread_index.y +
                                                  thread.block_extent.y * thread.thread_index.z);
  return static_cast<int>(index % kWarp);
}

int barrier(const void* site, int predicate) {
  return running->barrier(site, predicate);
}

WarpExchange::WarpExchange(unsigned mask, uint64_t value) : mask_(mask) {
  running->exchange(mask, value, values_);
}

uint64_t WarpExchange::of_lane(int lane) const {
  return values_[(mask_ >> lane & 1U) != 0 ? lane : shim::lane()];
}

unsigned WarpExchange::ballot() const {
  unsigned bits = 0;
  for (int i = 0; i < kWarp; ++i) {
    bits |= (mask_ >> i & 1U) != 0 && values_[i] != 0 ? 1U << i : 0U;
  }
  return bits;
}

void* shared_array(const void* site, size_t bytes) {
  return running->shared_array(site, bytes);
}

void* dynamic_shared() {
  return running->dynamic_shared();
}

void copy_later(void* to, const void* from, size_t bytes) {
  running->copy_later({to, from, bytes});
}

void finish_copies() {
  running->finish_copies();
}

void run_blocks(dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                const std::function<void()>& thread) {
  if (dynamic_shared_bytes > kMaxDynamicSharedBytes) {
    fail("a block asks for more dynamic shared memory than sm_89 has");
  }
  static thread_local BlockRunner runner;
  running = &runner;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        runner.run(grid, {x, y, z}, block, dynamic_shared_bytes, thread);
      }
    }
  }
  running = nullptr;
}

}  // namespace fp8train::shim
