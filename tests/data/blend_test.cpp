// Sources that are blended by weight.

#include "data/sample_order.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "data/loader.h"
#include "support/files.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

struct TestSource {
  int64_t tokens;
  double weight;
};

SampleOptions shuffled(uint64_t seed) {
  return {.walk = SampleWalk::training, .shuffle = true, .seed = seed};
}

/// The token at position i is i.
Corpus corpus_of(const std::vector<TestSource>& sources) {
  Corpus corpus;
  for (const TestSource& source : sources) {
    std::vector<int32_t> tokens(static_cast<size_t>(source.tokens));
    const int64_t begin = corpus.size();
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(begin));
    corpus.append(memory_store(tokens), 0, source.tokens);
    corpus.add_source(
        {"source" + std::to_string(corpus.sources().size()), source.weight, begin, source.tokens});
  }
  return corpus;
}

TEST_CASE("a blend has its weights at every prefix, and deals out each source in order") {
  const std::vector<std::vector<double>> cases = {{1},
                                                  {0.7, 0.3},
                                                  {1, 1, 1},
                                                  {3, 1, 1, 1, 0.001},
                                                  {1, 1e9},
                                                  {0.1, 0.2, 0.3, 0.4},
                                                  {5, 4, 3, 2, 1, 0.5, 0.25, 0.125, 7}};
  for (const std::vector<double>& weights : cases) {
    const Blend blend(weights);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double bound = std::ceil(std::log2(static_cast<double>(weights.size()))) / 2 + 1e-9;
    std::vector<uint64_t> counts(weights.size());
    for (uint64_t n = 0; n < 5000; ++n) {
      const Blend::Draw draw = blend.draw(n);
      REQUIRE(draw.index == counts[draw.source]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double exact = static_cast<double>(n + 1) * weights[i] / total;
        REQUIRE(std::abs(static_cast<double>(counts[i]) - exact) <= bound);
        REQUIRE(blend.count(i, n + 1) == counts[i]);
      }
    }
  }
}

TEST_CASE("a blend is the same wherever it begins") {
  const std::vector<double> weights = {0.62, 0.21, 0.17};
  const Blend blend(weights);
  for (const uint64_t begin : {uint64_t{1} << 40, uint64_t{1} << 60}) {
    for (uint64_t n = begin; n < begin + 300; ++n) {
      const Blend::Draw draw = blend.draw(n);
      for (size_t i = 0; i < weights.size(); ++i) {
        const uint64_t before = blend.count(i, n);
        REQUIRE(blend.count(i, n + 1) == before + (i == draw.source ? 1 : 0));
        if (i == draw.source) {
          REQUIRE(draw.index == before);
        }
      }
    }
  }
}

TEST_CASE("each source of a blend is shuffled and repeated on its own") {
  constexpr int64_t kLength = 8;
  const Corpus corpus = corpus_of({{830, 3}, {405, 1}});
  const Samples order(corpus, kLength, shuffled(11));
  std::map<size_t, std::vector<int64_t>> starts;
  constexpr uint64_t kSamples = 1600;
  for (uint64_t n = 0; n < kSamples; ++n) {
    const int64_t start = order.start_of(n);
    const size_t source = start < 830 ? 0 : 1;
    const int64_t end = source == 0 ? 830 : 1235;
    REQUIRE(start + kLength < end);  // a sample does not run into the next source
    starts[source].push_back(start);
  }
  CHECK(starts[0].size() == 1200);
  CHECK(starts[1].size() == 400);
  const std::vector<double> epochs = order.epochs(kSamples);
  const std::vector<size_t> windows = {102, 49};  // of an epoch, whose windows may begin later
  for (const size_t source : {0U, 1U}) {
    CHECK(epochs[source] ==
          static_cast<double>(starts[source].size()) / static_cast<double>(windows[source]));
    std::set<int64_t> first_epoch(starts[source].begin(), starts[source].begin() + windows[source]);
    CHECK(first_epoch.size() == windows[source]);
    const std::vector<int64_t> sorted(first_epoch.begin(), first_epoch.end());
    CHECK(sorted.back() - sorted.front() == static_cast<int64_t>(windows[source] - 1) * kLength);
    CHECK_FALSE(std::is_sorted(starts[source].begin(), starts[source].begin() + 40));
  }
  CHECK(Samples(corpus, kLength, shuffled(12)).start_of(0) != order.start_of(0));
}

TEST_CASE("documents of each source of a blend are packed on their own") {
  // Documents of 5 and 3 tokens; of the sequences of 8 positions each holds two or four.
  Corpus corpus;
  for (const auto& [length, weight] : {std::pair<int, double>{5, 3}, {3, 1}}) {
    constexpr int kDocuments = 40;
    const int64_t begin = corpus.size();
    DocumentTable table;
    for (int i = 1; i <= kDocuments; ++i) table.ends.push_back(int64_t{i} * length);
    const std::vector<int32_t> tokens(static_cast<size_t>(kDocuments * length), length);
    const auto size = static_cast<int64_t>(tokens.size());
    corpus.append(memory_store(tokens, table), 0, size);
    corpus.add_source({"source", weight, begin, size});
  }
  corpus.set_form({.packing = Packing::documents, .masks_documents = true});
  Loader loader(corpus, {.micro_batch_size = 4, .seq_length = 8, .seed = 3, .prefetch = 0});
  std::map<int32_t, int> sequences;
  for (int i = 0; i < 30; ++i) {
    const Batch batch = loader.next();
    int64_t targets = 0;
    for (size_t row = 0; row < 4; ++row) {
      const auto begin = batch.tokens.begin() + static_cast<std::ptrdiff_t>(row * 8);
      ++sequences[*begin];
      CHECK(std::set<int32_t>(begin, begin + 8) == std::set<int32_t>{*begin});
    }
    for (const int32_t target : batch.targets) targets += target == kIgnoredTarget ? 0 : 1;
    CHECK(batch.step_targets == targets);
  }
  CHECK(sequences[5] == 90);
  CHECK(sequences[3] == 30);
  CHECK(loader.samples().epochs(120) == std::vector<double>{90 / 20.0, 30 / 10.0});
}

TEST_CASE("any number of ranks and any begin give a blend the same samples") {
  const Corpus corpus = corpus_of({{500, 0.5}, {300, 0.25}, {200, 0.25}});
  const auto samples = [&](int ranks, int64_t rows, uint64_t begin) {
    std::multiset<int32_t> firsts;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(corpus, {.micro_batch_size = rows,
                             .seq_length = 4,
                             .seed = 3,
                             .data_rank = rank,
                             .data_ranks = ranks});
      loader.seek(begin);
      for (int64_t i = 0; i < 24 / ranks / rows; ++i) {
        const Batch batch = loader.next();
        for (int64_t row = 0; row < rows; ++row) {
          firsts.insert(batch.tokens[static_cast<size_t>(row * 4)]);
        }
      }
      CHECK(loader.position() == begin + 24);
    }
    return firsts;
  };
  const auto one = samples(1, 1, 1000);
  CHECK(one == samples(2, 3, 1000));
  CHECK(one == samples(4, 2, 1000));
  CHECK(one != samples(1, 1, 1024));
}

TEST_CASE("without weights sources are one sequence of tokens") {
  const Corpus corpus = corpus_of({{500, 1}, {300, 1}});
  CHECK_FALSE(corpus.is_blend());
  CHECK_FALSE(corpus_of({{500, 2}}).is_blend());
  const Samples order(corpus, 16, shuffled(5));
  const SampleOrder whole(800, 16, true, 5);
  for (uint64_t n = 0; n < 200; ++n) {
    REQUIRE(order.start_of(n) == whole.start_of(n));
  }
  CHECK(order.epochs(98) == std::vector<double>{2.0});
}

TEST_CASE("the fingerprint follows the weights of a blend") {
  const auto fingerprint = [](double weight) {
    return corpus_of({{500, weight}, {300, 1}}).fingerprint();
  };
  Corpus plain;
  std::vector<int32_t> tokens(800);
  std::iota(tokens.begin(), tokens.end(), 0);
  plain.append(memory_store(tokens), 0, 500);
  plain.append(memory_store(std::vector<int32_t>(tokens.begin() + 500, tokens.end())), 0, 300);
  CHECK(fingerprint(1) == plain.fingerprint());
  CHECK(fingerprint(2) != fingerprint(1));
  CHECK(fingerprint(2) != fingerprint(3));
}

TEST_CASE("a source of a blend that is shorter than a sample is named") {
  const Corpus corpus = corpus_of({{500, 2}, {16, 1}});
  CHECK_THAT(message_of<DataError>([&] { Samples(corpus, 16, shuffled(1)); }),
             Contains("source1: ") && Contains("16 tokens") && Contains("needs 17"));
}

TEST_CASE("a source of a blend without a document to train on is named") {
  Corpus corpus;
  DocumentTable table;
  table.ends = {4, 8};
  corpus.append(memory_store({1, 2, 3, 4, 5, 6, 7, 8}, table), 0, 8);
  corpus.add_source({"source0", 2, 0, 8});
  corpus.add_source({"source1", 1, 8, 0});
  corpus.set_form({.packing = Packing::documents, .masks_documents = true});
  CHECK_THAT(message_of<DataError>([&] { Samples(corpus, 16, shuffled(1)); }),
             Contains("source1: no document is left to train on"));
}

TEST_CASE("the fingerprint follows the form of samples") {
  const auto fingerprint = [](const SampleForm& form) {
    Corpus corpus;
    DocumentTable table;
    table.ends = {4, 8};
    corpus.append(memory_store({1, 2, 3, 4, 5, 6, 7, 8}, table), 0, 8);
    corpus.set_form(form);
    return corpus.fingerprint();
  };
  const std::set<std::string> all = {
      fingerprint({}), fingerprint({.masks_documents = true}),
      fingerprint({.packing = Packing::none}),
      fingerprint({.packing = Packing::documents, .masks_documents = true})};
  CHECK(all.size() == 4);
}

TEST_CASE("windows with a stride have every target once, with tokens in front") {
  const Corpus corpus = corpus_of({{103, 1}});
  for (const int64_t stride : {0, 1, 3, 7, 10}) {
    std::vector<int> seen(103);
    ValidationBatches batches(corpus, 3, 10, {.stride = stride});
    bool is_first = true;
    while (const std::optional<Batch> batch = batches.next()) {
      for (int64_t row = 0; row < batch->rows; ++row, is_first = false) {
        for (int64_t i = 0; i < 10; ++i) {
          const int32_t target = batch->targets[static_cast<size_t>(row * 10 + i)];
          if (target == kIgnoredTarget) continue;
          ++seen[static_cast<size_t>(target)];
          REQUIRE(batch->tokens[static_cast<size_t>(row * 10 + i)] == target - 1);
          REQUIRE((is_first || stride == 0 || i >= 10 - stride));
        }
      }
    }
    CHECK(seen[0] == 0);
    CHECK(std::count(seen.begin() + 1, seen.end(), 1) == 102);
  }
  CHECK(ValidationBatches(corpus_of({{4, 1}}), 1, 10, {.stride = 2}).batch_count() == 1);
  CHECK(ValidationBatches(corpus_of({{1, 1}}), 1, 10, {.stride = 2}).batch_count() == 0);
}

}  // namespace
}  // namespace fp8train
