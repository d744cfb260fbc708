#include "data/loader.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"

namespace fp8train {
namespace {

/// A corpus whose token at position i is i.
Corpus counting(int64_t size) {
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), 0);
  Corpus corpus;
  corpus.append(memory_store(tokens), 0, size);
  return corpus;
}

/// Fails every read that touches `bad`.
class FailingStore final : public TokenStore {
 public:
  explicit FailingStore(int64_t bad) : bad_(bad) {}
  int64_t size() const override { return 1000; }
  void read(int64_t offset, int64_t count, int32_t* to) const override {
    ++reads;
    if (broken && offset <= bad_ && bad_ < offset + count) {
      throw DataError("the disk is gone");
    }
    std::fill_n(to, count, 7);
  }
  std::atomic<bool> broken{true};
  mutable std::atomic<int> reads{0};

 private:
  int64_t bad_;
};

TEST_CASE("the permutation is a bijection for every size") {
  for (uint64_t count = 1; count < 300; ++count) {
    const Permutation permutation(count * 77, count);
    std::vector<bool> seen(count, false);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t image = permutation(i);
      REQUIRE(image < count);
      REQUIRE_FALSE(seen[image]);
      seen[image] = true;
    }
  }
  for (const uint64_t count : {4096ULL, 4097ULL, 65535ULL, 100003ULL}) {
    const Permutation permutation(5, count);
    std::vector<bool> seen(count, false);
    uint64_t moved = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t image = permutation(i);
      REQUIRE(image < count);
      seen[image] = true;
      moved += image != i ? 1 : 0;
    }
    CHECK(std::count(seen.begin(), seen.end(), true) == static_cast<std::ptrdiff_t>(count));
    CHECK(moved > count * 9 / 10);
  }
  const Permutation vast(5, 1ULL << 62);
  CHECK(vast(0) != vast(1));
}

TEST_CASE("sample order is pure, differs by epoch and seed, and covers each epoch once") {
  const int64_t size = 10007;
  const int64_t seq = 16;
  const SampleOrder order(size, seq, true, 42);
  const SampleOrder same(size, seq, true, 42);
  const SampleOrder other(size, seq, true, 43);
  const uint64_t n = order.samples_per_epoch();
  CHECK(n == static_cast<uint64_t>((size - seq) / seq));
  std::set<int64_t> offsets;
  int equal_to_other = 0;
  for (uint64_t epoch = 0; epoch < 8; ++epoch) {
    std::set<int64_t> starts;
    for (uint64_t i = 0; i < n; ++i) {
      const int64_t start = order.start_of(epoch * n + i);
      REQUIRE(start >= 0);
      REQUIRE(start + seq + 1 <= size);
      starts.insert(start);
      REQUIRE(same.start_of(epoch * n + i) == start);
      equal_to_other += other.start_of(epoch * n + i) == start ? 1 : 0;
    }
    CHECK(starts.size() == n);
    const int64_t offset = *starts.begin();
    CHECK(offset < seq);
    for (const int64_t start : starts) {
      REQUIRE((start - offset) % seq == 0);
    }
    offsets.insert(offset);
  }
  CHECK(offsets.size() > 2);
  CHECK(equal_to_other < 50);
}

TEST_CASE("without shuffling windows follow one another and wrap") {
  const SampleOrder order(33, 8, false, 1);
  CHECK(order.samples_per_epoch() == 4);
  const std::vector<int64_t> expected = {0, 8, 16, 24, 0, 8};
  for (uint64_t i = 0; i < expected.size(); ++i) {
    CHECK(order.start_of(i) == expected[i]);
  }
  CHECK(SampleOrder(32, 8, false, 1).samples_per_epoch() == 3);
}

TEST_CASE("the smallest corpora: seq_length + 1 tokens work, one less does not") {
  for (const bool shuffle : {false, true}) {
    const SampleOrder order(9, 8, shuffle, 3);
    CHECK(order.samples_per_epoch() == 1);
    for (uint64_t i = 0; i < 5; ++i) {
      CHECK(order.start_of(i) == 0);
    }
    CHECK_THROWS_AS(SampleOrder(8, 8, shuffle, 3), DataError);
  }
  const SampleOrder order(12, 8, true, 3);
  for (uint64_t i = 0; i < 50; ++i) {
    CHECK(order.start_of(i) + 9 <= 12);
  }
}

TEST_CASE("batches hold tokens and the tokens after them, as llm.c reads them") {
  const Corpus corpus = counting(101);
  LoaderSettings settings;
  settings.micro_batch_size = 2;
  settings.seq_length = 5;
  settings.shuffle = false;
  Loader loader(corpus, settings);
  const Batch first = loader.next();
  CHECK(first.rows == 2);
  CHECK(first.columns == 5);
  CHECK(first.tokens == std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(first.targets == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(loader.next().tokens.front() == 10);
  CHECK(loader.position() == 4);
}

TEST_CASE("prefetching and seeking change nothing in the order") {
  const Corpus corpus = counting(5000);
  LoaderSettings settings;
  settings.micro_batch_size = 3;
  settings.seq_length = 16;
  settings.seed = 9;
  settings.prefetch = 0;
  Loader plain(corpus, settings);
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 250; ++i) {
    expected.push_back(plain.next().tokens);
  }
  for (const size_t prefetch : {1U, 2U, 7U}) {
    settings.prefetch = prefetch;
    Loader loader(corpus, settings);
    for (int i = 0; i < 40; ++i) {
      REQUIRE(loader.next().tokens == expected[static_cast<size_t>(i)]);
    }
    CHECK(loader.position() == 120);
    Loader resumed(corpus, settings);
    resumed.seek(loader.position());
    for (size_t i = 40; i < expected.size(); ++i) {
      REQUIRE(resumed.next().tokens == expected[i]);
    }
    loader.seek(30);
    CHECK(loader.next().tokens == expected[10]);
    CHECK(loader.position() == 33);
  }
}

TEST_CASE("ranks share one global order, whatever their number") {
  const Corpus corpus = counting(4000);
  const auto samples = [&](int world_size, int64_t micro_batch_size) {
    std::vector<int32_t> firsts;
    for (int rank = 0; rank < world_size; ++rank) {
      LoaderSettings settings;
      settings.micro_batch_size = micro_batch_size;
      settings.seq_length = 8;
      settings.seed = 5;
      settings.data_rank = rank;
      settings.data_ranks = world_size;
      Loader loader(corpus, settings);
      loader.seek(24);
      for (int step = 0; step < 3; ++step) {
        const Batch batch = loader.next();
        for (int64_t row = 0; row < batch.rows; ++row) {
          firsts.push_back(batch.tokens[static_cast<size_t>(row * batch.columns)]);
        }
      }
      CHECK(loader.position() == 24 + 3 * 12);
    }
    std::sort(firsts.begin(), firsts.end());
    return firsts;
  };
  const auto one = samples(1, 12);
  CHECK(one.size() == 36);
  CHECK(std::set<int32_t>(one.begin(), one.end()).size() == 36);
  CHECK(samples(3, 4) == one);
  CHECK(samples(4, 3) == one);
}

TEST_CASE("a read error reaches the consumer in its place and leaves the position") {
  const auto store = std::make_shared<FailingStore>(35);
  Corpus corpus;
  corpus.append(store, 0, store->size());
  for (const size_t prefetch : {0U, 4U}) {
    store->broken = true;
    LoaderSettings settings;
    settings.seq_length = 10;
    settings.shuffle = false;
    settings.prefetch = prefetch;
    Loader loader(corpus, settings);
    for (int i = 0; i < 3; ++i) {
      CHECK_NOTHROW(loader.next());
    }
    CHECK_THROWS_AS(loader.next(), DataError);
    CHECK_THROWS_AS(loader.next(), DataError);
    CHECK(loader.position() == 3);
    store->broken = false;
    CHECK_NOTHROW(loader.next());
    CHECK(loader.position() == 4);
  }
}

TEST_CASE("nothing is read ahead of a batch that fails") {
  const auto store = std::make_shared<FailingStore>(35);
  Corpus corpus;
  corpus.append(store, 0, store->size());
  LoaderSettings settings;
  settings.seq_length = 10;
  settings.shuffle = false;
  settings.prefetch = 8;
  store->reads = 0;
  Loader loader(corpus, settings);
  loader.next();
  for (int i = 0; i < 1000 && store->reads < 4; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(store->reads == 4);  // three batches and the one that fails
}

TEST_CASE("a loader can be dropped at any moment") {
  const Corpus corpus = counting(2000);
  LoaderSettings settings;
  settings.seq_length = 4;
  for (int i = 0; i < 100; ++i) {
    Loader loader(corpus, settings);
    for (int k = 0; k < i % 4; ++k) {
      loader.next();
    }
  }
  SUCCEED();
}

TEST_CASE("a batch without its padding has all targets, and their tokens") {
  const int32_t none = kIgnoredTarget;
  const Batch batch = {.rows = 4,
                       .columns = 5,
                       .tokens = {1, 2, 3, 4, 0, 5, 6, 0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0},
                       .targets = {none, 3,    none, none, none, none, none, none, none, none,
                                   8,    none, 10,   none, none, none, none, none, none, none}};
  const Batch cut = without_padding(batch, 1);
  CHECK(cut.rows == 3);
  CHECK(cut.columns == 3);
  CHECK(cut.tokens == std::vector<int32_t>{1, 2, 3, 5, 6, 0, 7, 8, 9});
  CHECK(cut.targets == std::vector<int32_t>{none, 3, none, none, none, none, 8, none, 10});
  CHECK(without_padding(batch, 4).columns == 4);
  CHECK(without_padding(batch, 16).columns == 5);
  CHECK(without_padding({.rows = 1, .columns = 2, .tokens = {1, 0}, .targets = {none, none}}, 1)
            .rows == 0);
}

TEST_CASE("validation sees every target exactly once") {
  for (const int64_t size : {2, 8, 9, 10, 17, 100, 101}) {
    const Corpus corpus = counting(size);
    for (const int world_size : {1, 3}) {
      std::vector<int> seen(static_cast<size_t>(size), 0);
      std::set<int64_t> batch_counts;
      for (int rank = 0; rank < world_size; ++rank) {
        ValidationBatches batches(corpus, 2, 8, {.data_rank = rank, .data_ranks = world_size});
        CHECK(batches.target_count() == size - 1);
        int64_t count = 0;
        while (const auto batch = batches.next()) {
          ++count;
          REQUIRE(batch->tokens.size() == 16);
          for (size_t i = 0; i < batch->targets.size(); ++i) {
            const int32_t target = batch->targets[i];
            if (target == kIgnoredTarget) {
              REQUIRE(batch->tokens[i] == 0);
              continue;
            }
            REQUIRE(batch->tokens[i] == target - 1);
            ++seen[static_cast<size_t>(target)];
          }
        }
        CHECK(count == batches.batch_count());
        batch_counts.insert(count);
        batches.rewind();
        CHECK(batches.next().has_value());
      }
      CHECK(batch_counts.size() == 1);
      CHECK(seen[0] == 0);
      CHECK(std::all_of(seen.begin() + 1, seen.end(), [](int n) { return n == 1; }));
    }
  }
  Corpus empty;
  CHECK_FALSE(ValidationBatches(empty, 2, 8).next().has_value());
}

}  // namespace
}  // namespace fp8train
