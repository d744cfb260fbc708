// A parameter with many more gradients than a bucket has: what ranks need to exchange it does not
// grow with it, and its sums are those of ranks that exchange it at once.

#include <catch2/catch.hpp>

#include <cstring>

#include "comm/backends/backends.h"
#include "parallel/strategy.h"
#include "support/rank_threads.h"

using namespace fp8train;

namespace {

constexpr int64_t kBucket = int64_t{1} << 20;

void add_units(ParameterStore& store, int64_t vocabulary, const TensorFormat& wire) {
  ParameterFormats formats;
  formats.gradient_wire = wire;
  store.begin_unit();
  store.add({.name = "embedding", .shape = {vocabulary, 64}, .formats = formats});
  for (const char* block : {"a", "b", "c"}) {
    store.begin_unit();
    store.add({.name = block, .shape = {100, 64}, .formats = formats});
  }
  store.begin_unit();
  store.add({.name = "head", .shape = {vocabulary, 64}, .formats = formats});
}

/// The memory that exchanges of gradients need on one rank of 16. Nothing is computed.
size_t communication(int stage, int64_t vocabulary, const TensorFormat& wire) {
  const std::unique_ptr<Device> meta = make_meta_device({});
  const std::unique_ptr<Communicator> comm = make_dry_run(Topology::blocks(16, 8), 3);
  ParameterStore store;
  add_units(store, vocabulary, wire);
  const auto strategy = make_strategy(
      {.mesh = Mesh(comm.get()), .settings = {.zero_stage = stage, .bucket_bytes = kBucket}});
  store.allocate(*meta, true, strategy->sharing());
  strategy->attach(*meta, store, {});
  return meta->ledger().current(MemoryCategory::communication);
}

}  // namespace

TEST_CASE("memory for exchanges follows the bucket, not the largest parameter") {
  const TensorFormat grouped = {
      .dtype = DType::e4m3, .block = per::group(128), .policy = ScalePolicy::current};
  const TensorFormat by_tensor = {.dtype = DType::e4m3, .policy = ScalePolicy::current};
  for (const TensorFormat& wire : {plain(DType::f32), plain(DType::bf16), grouped, by_tensor}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(describe(wire), stage);
      for (const int64_t vocabulary : {50000, 200000}) {  // 12 and 49 times a bucket
        // Of a queue: what is sent, what is received and one node's sums of a piece. Two queues at
        // most hold large buckets.
        const auto bytes = static_cast<double>(communication(stage, vocabulary, wire));
        CHECK(bytes <= 2 * 2.25 * kBucket);
      }
    }
  }
}
