#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/loader.h"
#include "data/readers/data_format.h"
#include "data/token_file_writer.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

/// Documents 100, 101, ..; 200, 201, ..; ..: of these lengths. `ignored`: first tokens of each that
/// are no targets.
Corpus corpus_of(const std::vector<int>& lengths, const SampleForm& form, int ignored = 0) {
  std::vector<int32_t> tokens;
  DocumentTable table;
  for (size_t d = 0; d < lengths.size(); ++d) {
    for (int i = 0; i < lengths[d]; ++i) {
      tokens.push_back(static_cast<int32_t>(100 * (d + 1)) + i);
      table.is_target.push_back(i >= ignored);
    }
    table.ends.push_back(static_cast<int64_t>(tokens.size()));
  }
  if (ignored == 0) table.is_target.clear();
  Corpus corpus;
  const auto size = static_cast<int64_t>(tokens.size());
  corpus.append(memory_store(tokens, table), 0, size);
  corpus.set_form(form);
  return corpus;
}

constexpr SampleForm kPacked = {.packing = Packing::documents, .masks_documents = true};

TEST_CASE("documents are packed whole, first fit, with padding behind", "[data][packing]") {
  const Corpus corpus = corpus_of({4, 6, 3, 2}, kPacked, 2);
  Loader loader(corpus, {.micro_batch_size = 2, .seq_length = 6, .shuffle = false, .prefetch = 0});
  CHECK(loader.samples().samples_per_epoch() == 2);
  const Batch batch = loader.next();
  const std::vector<int32_t> tokens = {100, 101, 102, 300, 301, 0, 200, 201, 202, 203, 204, 0};
  const std::vector<int32_t> targets = {-1, 102, 103, -1, 302, -1, -1, 202, 203, 204, 205, -1};
  const std::vector<int32_t> starts = {0, 0, 0, 3, 3, 5, 0, 0, 0, 0, 0, 5};
  CHECK(batch.tokens == tokens);
  CHECK(batch.targets == targets);
  CHECK(batch.document_starts == starts);
  CHECK(batch.step_targets == 7);
  const DocumentSamples& samples = *loader.samples().documents();
  CHECK(samples.left_out() == 1);  // both of its tokens are no targets
  CHECK(samples.cut() == 0);
  CHECK(samples.filled() == Approx(10.0 / 12));
}

TEST_CASE("without packing a document has a sequence of its own", "[data][packing]") {
  const Corpus corpus = corpus_of({3, 9}, {.packing = Packing::none});
  Loader loader(corpus, {.micro_batch_size = 2, .seq_length = 4, .shuffle = false, .prefetch = 0});
  const Batch batch = loader.next();
  CHECK(batch.tokens == std::vector<int32_t>{100, 101, 0, 0, 200, 201, 202, 203});
  CHECK(batch.targets == std::vector<int32_t>{101, 102, -1, -1, 201, 202, 203, 204});
  CHECK(batch.document_starts.empty());
  CHECK(loader.samples().documents()->cut() == 1);
}

TEST_CASE("every document comes once an epoch, in another order", "[data][packing]") {
  const std::vector<int> lengths = {5, 2, 7, 3, 3, 6, 2, 4, 8, 2, 5, 3};
  const Corpus corpus = corpus_of(lengths, kPacked);
  Loader loader(corpus, {.seq_length = 8, .shuffle = true, .seed = 3});
  std::vector<std::vector<int32_t>> epochs;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int32_t> firsts;
    std::vector<int> seen(lengths.size());
    for (uint64_t i = 0; i < loader.samples().samples_per_epoch(); ++i) {
      const Batch batch = loader.next();
      firsts.push_back(batch.tokens.front());
      for (int t = 0; t < 8; ++t) {
        if (batch.targets[t] >= 0) ++seen[static_cast<size_t>(batch.targets[t] / 100 - 1)];
        if (batch.document_starts[t] == t && batch.targets[t] >= 0) {
          CHECK(batch.tokens[t] % 100 == 0);
        }
      }
    }
    for (size_t d = 0; d < lengths.size(); ++d) CHECK(seen[d] == lengths[d] - 1);
    epochs.push_back(firsts);
  }
  CHECK(epochs[0] != epochs[1]);
}

TEST_CASE("a step has the same targets on every rank and after a resume", "[data][packing]") {
  const Corpus corpus = corpus_of({5, 2, 7, 3, 3, 6, 2, 4, 8, 2, 5, 3}, kPacked, 1);
  const auto settings = [](int rank, int ranks, int64_t batches) {
    return LoaderSettings{.micro_batch_size = 1,
                          .seq_length = 8,
                          .seed = 9,
                          .data_rank = rank,
                          .data_ranks = ranks,
                          .batches_per_step = batches};
  };
  Loader alone(corpus, settings(0, 1, 4));
  Loader first(corpus, settings(0, 2, 2));
  Loader second(corpus, settings(1, 2, 2));
  for (int step = 0; step < 5; ++step) {
    int64_t counted = 0;
    Loader resumed(corpus, settings(0, 1, 4));
    resumed.seek(alone.position());
    std::vector<int64_t> said;
    for (int i = 0; i < 4; ++i) {
      const Batch batch = alone.next();
      CHECK(resumed.next().tokens == batch.tokens);
      said.push_back(batch.step_targets);
      for (const int32_t target : batch.targets) counted += target >= 0 ? 1 : 0;
    }
    for (const int64_t targets : said) CHECK(targets == counted);
    for (int i = 0; i < 2; ++i) {
      CHECK(first.next().step_targets == counted);
      CHECK(second.next().step_targets == counted);
    }
  }
}

TEST_CASE("validation walks all documents once", "[data][packing]") {
  const Corpus corpus = corpus_of({5, 2, 7, 3, 3}, kPacked, 2);
  ValidationBatches batches(corpus, 2, 6);
  int64_t counted = 0;
  while (const auto batch = batches.next()) {
    CHECK(batch->document_starts.size() == 12);
    for (const int32_t target : batch->targets) counted += target >= 0 ? 1 : 0;
  }
  CHECK(counted == 3 + 0 + 5 + 1 + 1);
  CHECK(batches.target_count() == counted);
}

TEST_CASE("windows with a mask begin a document behind each end", "[data][packing]") {
  Corpus corpus;
  corpus.append(memory_store({1, 2, 9, 3, 9, 4, 5, 6, 7}), 0, 9);
  corpus.set_form({.packing = Packing::windows, .masks_documents = true, .end_token = 9});
  Loader loader(corpus, {.seq_length = 4, .shuffle = false, .prefetch = 0});
  CHECK(loader.next().document_starts == std::vector<int32_t>{0, 0, 0, 3});
  const Batch second = loader.next();
  CHECK(second.document_starts == std::vector<int32_t>{0, 1, 1, 1});
  CHECK(second.targets == std::vector<int32_t>{4, 5, 6, 7});
  CHECK(second.step_targets == 0);
}

TEST_CASE("a token file keeps documents and targets", "[data][packing]") {
  const TempDir folder;
  const auto path = folder.path() / "chat.bin";
  const std::vector<bool> mask = {false, false, true, true, false, true, true, false, true, true};
  {
    TokenFileWriter writer(path, 70000);
    writer.append_document(std::vector<int32_t>{1, 2, 3, 4, 69999, 6},
                           {mask.begin(), mask.begin() + 6});
    writer.append_document(std::vector<int32_t>{7, 8, 9, 10}, {mask.begin() + 6, mask.end()});
    writer.commit();
  }
  const auto store = llmc_format().open(path, 70000, true);
  REQUIRE(store->documents() != nullptr);
  CHECK(store->documents()->ends == std::vector<int64_t>{6, 10});
  CHECK(store->documents()->is_target == mask);
  CHECK(store->facts().documents == 2);
  std::string bytes = read_file(path);
  bytes[1024 + 40] = 7;  // the length of the first document
  write_file(path, bytes);
  CHECK_THROWS_AS(llmc_format().open(path, 70000, true), DataError);
  bytes.pop_back();
  write_file(path, bytes);
  CHECK_THROWS_AS(llmc_format().open(path, 70000, true), DataError);
}

TEST_CASE("messages name what sets the length, and what is not read", "[data][packing]") {
  const Corpus corpus = corpus_of({9, 3, 20}, kPacked, 2);
  std::vector<std::string> notes, warnings;
  ValidationBatches(corpus, 1, 4, {.length_option = "--seq-length"})
      .samples()
      .describe("f", notes, warnings);
  CHECK(notes == std::vector<std::string>{
                     "f: 3 documents in 3 sequences, 83.3 % full; loss on 7 tokens of an epoch"});
  CHECK(warnings == std::vector<std::string>{"f: 2 documents are longer than --seq-length and cut; "
                                             "19 tokens are not read"});
  CHECK_THROWS_WITH(ValidationBatches(corpus, 1, 1, {.length_option = "--seq-length"}),
                    Catch::Contains("no document has a target within --seq-length"));
}

TEST_CASE("tokens of no document cannot be packed", "[data][packing]") {
  Corpus corpus = corpus_of({4, 4}, kPacked);
  corpus.append(memory_store({1, 2, 3}), 0, 3);
  CHECK_THROWS_WITH(Samples(corpus, 4), Catch::Contains("3 of 11 tokens"));
}

}  // namespace
}  // namespace fp8train::test
