// Documents of token files, as data.packing reads them.

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/loader.h"
#include "data/prepare.h"
#include "data/readers/data_format.h"
#include "data/token_file.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

namespace fs = std::filesystem;

const fs::path kTokenFiles = fs::path(FP8TRAIN_GOLDEN_DIR) / "data";

/// JSON lines of 40 texts of different lengths, one of them empty.
std::string forty_texts() {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += R"({"text": ")" +
             std::string(static_cast<size_t>(i * 7 % 23), static_cast<char>('a' + i % 20)) +
             "\"}\n";
  }
  return lines;
}

CorpusSplits packed(const fs::path& train, const fs::path& val, double val_fraction = 0,
                    Packing packing = Packing::documents) {
  DataSettings settings;
  settings.train = {{train.string(), "auto", 1.0}};
  if (!val.empty()) settings.val = {{val.string(), "auto", 1.0}};
  settings.val_fraction = val_fraction;
  settings.packing = packing;
  return open_corpora(settings, *make_byte_tokenizer(), 258);
}

void compare_batches(const Corpus& a, const Corpus& b) {
  Loader left(a, {.micro_batch_size = 2, .seq_length = 32, .shuffle = true, .seed = 5});
  Loader right(b, {.micro_batch_size = 2, .seq_length = 32, .shuffle = true, .seed = 5});
  REQUIRE(left.samples().samples_per_epoch() == right.samples().samples_per_epoch());
  for (uint64_t i = 0; i < left.samples().samples_per_epoch(); i += 2) {
    const Batch one = left.next();
    const Batch other = right.next();
    CHECK(one.tokens == other.tokens);
    CHECK(one.targets == other.targets);
    CHECK(one.document_starts == other.document_starts);
  }
}

TEST_CASE("documents of Megatron-LM's index are known where they are asked for", "[data]") {
  for (const auto& [name, ends] :
       {std::pair("documents_u16.bin", std::vector<int64_t>{100, 130, 180}),
        std::pair("documents_i32.bin", std::vector<int64_t>{20, 60}),
        std::pair("indexed_u16.bin", std::vector<int64_t>{100, 200, 250}),  // and an empty one
        std::pair("indexed_i32.bin", std::vector<int64_t>{20, 60})}) {
    const auto store = indexed_format().open(kTokenFiles / name, 128256, true);
    REQUIRE(store->documents() != nullptr);
    CHECK(store->documents()->ends == ends);
    CHECK(store->documents()->is_target.empty());
    CHECK(indexed_format().open(kTokenFiles / name, 128256, false)->documents() == nullptr);
  }
}

TEST_CASE("prepared JSON lines are packed as the lines themselves", "[data][packing]") {
  const TokenFileFormat format =
      GENERATE(TokenFileFormat::llmc, TokenFileFormat::npy, TokenFileFormat::indexed);
  const TempDir folder;
  const fs::path file = folder.path() / "t.jsonl";
  write_file(file, forty_texts());
  const CorpusSplits direct = packed(file, {}, 0.2);
  PrepareSettings settings = {
      .inputs = {file.string()}, .out = folder.path() / "out", .val_fraction = 0.2};
  settings.output_format = format;
  settings.threads = 2;
  prepare_data(settings);
  const std::string extension(extension_of(format));
  const fs::path train = settings.out / ("train_000000" + extension);
  const CorpusSplits prepared = packed(train, settings.out / ("val_000000" + extension));
  compare_batches(direct.train, prepared.train);
  compare_batches(direct.val, prepared.val);

  // What is held back lies between documents, and the index is among the files of a run.
  const CorpusSplits split = packed(train, {}, 0.3);
  CHECK(split.train.documents().size() + split.val.documents().size() ==
        prepared.train.documents().size());
  REQUIRE(split.train.files().size() == 2);
  CHECK(fs::path(split.train.files()[1].path).extension() == ".idx");

  // Windows of shards do not read it, so that a run goes on where it comes or goes.
  const CorpusSplits windows = packed(train, {}, 0, Packing::windows);
  CHECK(windows.train.files().size() == (format == TokenFileFormat::indexed ? 2 : 1));
  CHECK_THROWS_WITH(packed(settings.out / "train_000000.idx", {}),
                    Catch::Contains("is an index; name the .bin or .npy file"));
}

TEST_CASE("a document that goes on in the next shard is one in each", "[data][packing]") {
  const TempDir folder;
  write_file(folder.path() / "t.jsonl", forty_texts());
  prepare_data({.inputs = {(folder.path() / "t.jsonl").string()},
                .out = folder.path() / "out",
                .shard_tokens = 50});
  const CorpusSplits splits = packed(folder.path() / "out/train_*.bin", {});
  int64_t end = 0;
  for (const Document& document : splits.train.documents()) {
    CHECK(document.begin == end);
    end += document.count;
  }
  CHECK(end == splits.train.size());
  CHECK(splits.train.documents().size() > 40);
}

TEST_CASE("an index of another file is refused, and a file that is no index left alone",
          "[data][packing]") {
  const TempDir folder;
  const fs::path out = folder.path() / "out";
  write_file(folder.path() / "t.jsonl", forty_texts());
  prepare_data({.inputs = {(folder.path() / "t.jsonl").string()}, .out = out, .val_fraction = 0.2});
  const std::string good = read_file(out / "train_000000.idx");
  fs::copy(out / "val_000000.idx", out / "train_000000.idx", fs::copy_options::overwrite_existing);
  CHECK_THROWS_WITH(packed(out / "train_000000.bin", {}),
                    Catch::Contains("train_000000.idx") && Catch::Contains("do not belong"));
  std::string damaged = good;
  damaged.pop_back();
  write_file(out / "train_000000.idx", damaged);
  CHECK_THROWS_AS(packed(out / "train_000000.bin", {}), DataError);
  write_file(out / "train_000000.idx", "of another program");
  CHECK(llmc_format().open(out / "train_000000.bin", 258, true)->documents() == nullptr);
  const CorpusSplits without = packed(out / "train_000000.bin", {});
  CHECK_THROWS_WITH(Samples(without.train, 32), Catch::Contains("prepare them again"));
  CHECK(without.train.files().size() == 1);
}

}  // namespace
}  // namespace fp8train::test
