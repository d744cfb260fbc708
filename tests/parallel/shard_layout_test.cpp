// Which rank updates what: every element once, in equal shares, and the same in each stage.

#include "parallel/sharded_store.h"
#include "parallel/strategy.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

using namespace fp8train;

namespace {

/// Units as a small model has them: sizes that are no multiples of 128, two formats, two kinds of
/// use.
void add_units(ParameterStore& store) {
  ParameterFormats few_bits;
  few_bits.moment1 = plain(DType::bf16);
  store.begin_unit();
  store.add({.name = "embedding", .shape = {50, 32}});
  for (const char* block : {"a", "b", "c"}) {
    const std::string name = block;
    store.begin_unit();
    store.add({.name = name + ".norm", .shape = {32}});
    store.add({.name = name + ".up",
               .shape = {100, 32},
               .formats = few_bits,
               .gathered = {.form = GatheredForm::operands}});
    store.add({.name = name + ".bias", .shape = {100}});
    store.add({.name = name + ".down",
               .shape = {32, 100},
               .formats = few_bits,
               .gathered = {.form = GatheredForm::operands}});
  }
  store.begin_unit();
  store.add({.name = "final", .shape = {32}});
}

/// `site`: without its mesh.
StoreLayout layout_of(int ranks, int rank, StrategySite site) {
  ParameterStore store;
  add_units(store);
  site.mesh = Mesh({.data = ranks}, rank, nullptr);
  return shard_layout(store, site);
}

StrategySite stage(int number) {
  return {.mesh = {}, .settings = {.zero_stage = number}};
}

}  // namespace

TEST_CASE("of ranks that have the same shards one writes their states") {
  const std::unique_ptr<Device> device = make_meta_device({});
  for (const bool writes : {true, false}) {
    ParameterStore store;
    add_units(store);
    StrategySite site = stage(1);
    site.mesh = Mesh({.data = 2}, 1, nullptr);
    StoreLayout layout = shard_layout(store, site);
    layout.writes = writes;
    store.allocate(*device, true, {.shards = [&](const ParameterStore& of) {
      return std::make_unique<ShardedStore>(of, layout);
    }});
    REQUIRE(store.share());
    CHECK(store.share()->rank == 1);
    CHECK(store.share()->writes == writes);
  }
}

TEST_CASE("every element is updated by one rank, in shards of equal size") {
  const int ranks = GENERATE(1, 2, 3, 8, 40);
  CAPTURE(ranks);
  ParameterStore store;
  add_units(store);
  std::map<size_t, std::vector<int>> updates;
  for (int rank = 0; rank < ranks; ++rank) {
    const StoreLayout layout = layout_of(ranks, rank, stage(1));
    REQUIRE(layout.parts.size() == store.all().size());
    for (const StoreLayout::Segment& segment : layout.segments) {
      CHECK(segment.shard % kRangeAlignment == 0);
      CHECK(std::is_sorted(segment.begins.begin(), segment.begins.end()));
      // What this rank updates of a segment fills its shard from the start, without holes but
      // those up to the next multiple of 128.
      int64_t filled = 0;
      for (size_t i = 0; i < segment.parameters.size(); ++i) {
        const StoreLayout::Part& part = layout.parts[segment.parameters[i]];
        if (part.count > 0) {
          CHECK(segment.begins[i] + part.first - rank * segment.shard == filled);
          filled += (part.count + kRangeAlignment - 1) / kRangeAlignment * kRangeAlignment;
        }
      }
      CHECK(filled <= segment.shard);
    }
    for (size_t i = 0; i < layout.parts.size(); ++i) {
      std::vector<int>& counts = updates[i];
      counts.resize(static_cast<size_t>(store.all()[i]->shape.count()));
      CHECK(layout.parts[i].first % kRangeAlignment == 0);
      for (int64_t at = 0; at < layout.parts[i].count; ++at) {
        ++counts.at(static_cast<size_t>(layout.parts[i].first + at));
      }
    }
  }
  for (const auto& [parameter, counts] : updates) {
    CAPTURE(parameter);
    CHECK(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
  }
}

TEST_CASE("parameters of one unit that are alike share a segment, up to its most bytes") {
  const StoreLayout layout = layout_of(2, 0, stage(1));
  // embedding; norm and bias, up and down, of each block; final.
  REQUIRE(layout.segments.size() == 8);
  CHECK(layout.segments[1].parameters == std::vector<size_t>{1, 3});
  CHECK(layout.segments[2].parameters == std::vector<size_t>{2, 4});
  CHECK(layout.segments[2].begins == std::vector<int64_t>{0, 3200});
  CHECK(layout.segments[2].shard == 3200);
  const StoreLayout small =
      layout_of(2, 0, {.mesh = {}, .settings = {.zero_stage = 1, .bucket_bytes = 16000}});
  CHECK(small.segments.size() == 11);
}

TEST_CASE("the stage decides what stays, and not who updates what") {
  const StoreLayout first = layout_of(4, 1, stage(1));
  for (const int number : {1, 2, 3}) {
    CAPTURE(number);
    const StoreLayout layout = layout_of(4, 1, stage(number));
    CHECK(layout.parts == first.parts);
    CHECK(layout.operands_share_slots == (number == 3));
    for (const StoreLayout::Segment& segment : layout.segments) {
      const bool is_read = segment.parameters.front() != 2 && segment.parameters.front() != 6 &&
                           segment.parameters.front() != 10;
      CHECK(segment.values_stay == (number < 3 && is_read));
      CHECK(segment.gradients_stay == (number < 2));
    }
  }
  const StoreLayout adds =
      layout_of(4, 1, {.mesh = {}, .settings = {.zero_stage = 3}, .accumulates = true});
  CHECK(adds.segments.front().gradients_stay);
  CHECK_FALSE(adds.adds_shards);
  const StoreLayout in_shards = layout_of(
      4, 1,
      {.mesh = {}, .settings = {.zero_stage = 3, .sync_each_batch = true}, .accumulates = true});
  CHECK_FALSE(in_shards.segments.front().gradients_stay);
  CHECK(in_shards.adds_shards);
  CHECK(in_shards.parts == first.parts);
}

TEST_CASE("groups that share a copy are cut alike, and the first one writes") {
  const StrategySite site = {.mesh = {}, .settings = {.zero_stage = 3, .shard_ranks = 2}};
  for (int rank = 0; rank < 8; ++rank) {
    CAPTURE(rank);
    const StoreLayout layout = layout_of(8, rank, site);
    const StoreLayout of_group = layout_of(8, rank % 2, site);
    CHECK(layout.shared.count == 2);
    CHECK(layout.shared.rank == rank % 2);
    CHECK(layout.writes == (rank < 2));
    CHECK(layout.parts == of_group.parts);
    CHECK(layout.segments == of_group.segments);
    for (const StoreLayout::Segment& segment : layout.segments) {
      CHECK(segment.shard % (4 * kRangeAlignment) == 0);  // a part for each group
    }
  }
}

TEST_CASE("units that are in use together do not share memory") {
  const StoreLayout apart = layout_of(2, 0, stage(3));
  REQUIRE(apart.slot_groups.size() == 5);
  for (size_t unit = 1; unit < apart.slot_groups.size(); ++unit) {
    CHECK(apart.slot_groups[unit] != apart.slot_groups[unit - 1]);
  }
  CHECK(apart.slot_groups.front() == apart.slot_groups.back());
  CHECK(apart.slot_groups[1] == apart.slot_groups[3]);
  const StoreLayout together =
      layout_of(2, 0, {.mesh = {}, .settings = {.zero_stage = 3}, .ties_embeddings = true});
  CHECK(together.slot_groups.front() != together.slot_groups.back());
}
