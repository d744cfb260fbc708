// Token files that are written, against those that numpy and Megatron-LM write
// (tests/golden/make_token_files.py).

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/prepare.h"
#include "data/readers/data_format.h"
#include "data/token_file_writer.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

const std::filesystem::path kFixtures = std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "data";

/// As make_token_files.py makes them.
std::vector<int32_t> fixture_ids(int64_t count, int64_t vocabulary) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<int32_t>(i * 7919 % vocabulary));
  return values;
}

struct Written {
  const char* fixture;
  TokenFileFormat format;
  int64_t vocabulary;
  std::vector<int64_t> documents;
};

TEST_CASE("token files have the bytes that numpy and Megatron-LM write") {
  const std::vector<Written> cases = {
      {"u16.npy", TokenFileFormat::npy, 50257, {300}},
      {"documents_u16.bin", TokenFileFormat::indexed, 50257, {100, 30, 0, 50}},
      {"documents_i32.bin", TokenFileFormat::indexed, 128256, {20, 40}}};
  const test::TempDir dir;
  for (const Written& written : cases) {
    CAPTURE(written.fixture);
    int64_t total = 0;
    for (const int64_t count : written.documents) total += count;
    const std::vector<int32_t> tokens = fixture_ids(total, written.vocabulary);
    TokenFileWriter file(dir / written.fixture, written.vocabulary, written.format);
    auto next = tokens.begin();
    for (const int64_t count : written.documents) {
      file.append({next, next + count / 2});  // in two parts
      file.append({next + count / 2, next + count});
      file.end_document();
      next += count;
    }
    file.commit();
    CHECK(test::read_file(dir / written.fixture) == test::read_file(kFixtures / written.fixture));
    if (written.format == TokenFileFormat::indexed) {
      const auto index = std::filesystem::path(written.fixture).replace_extension(".idx");
      CHECK(test::read_file(dir / index) == test::read_file(kFixtures / index));
    }
  }
}

TEST_CASE("ids that do not fit into 16 bits are written in 32") {
  const test::TempDir dir;
  const std::vector<int32_t> tokens = fixture_ids(1000, 128256);
  for (const TokenFileFormat format : {TokenFileFormat::npy, TokenFileFormat::indexed}) {
    const auto path = dir / ("t" + std::string(extension_of(format)));
    TokenFileWriter file(path, 128256, format);
    file.append(tokens);
    file.commit();
    const DataFormat& read = format_of(path, "auto");
    CHECK(read.name == name_of(format));
    const auto store = read.open(path, 128256, true);
    REQUIRE(store->size() == 1000);
    CHECK(store->facts().type == "i32");
    std::vector<int32_t> back(1000);
    store->read(0, 1000, back.data());
    CHECK(back == tokens);
  }
  CHECK_THAT(message_of<ConfigError>([] { token_file_format_named("raw", "--output-format"); }),
             Contains("--output-format: Unknown format 'raw'") && Contains("indexed"));
}

TEST_CASE("prepared files of every format hold the same tokens and documents") {
  const test::TempDir dir;
  test::write_file(dir / "t.jsonl", R"({"text": "one"}
{"text": "two words"}
{"text": ""}
{"text": "three of them"}
)");
  std::vector<std::vector<int32_t>> tokens;
  for (const TokenFileFormat format :
       {TokenFileFormat::llmc, TokenFileFormat::npy, TokenFileFormat::indexed}) {
    PrepareSettings settings;
    settings.inputs = {(dir / "t.jsonl").string()};
    settings.out = dir / std::string(name_of(format));
    settings.output_format = format;
    settings.shard_tokens = 12;
    settings.threads = 2;
    CHECK(prepare_data(settings).documents == 4);
    tokens.emplace_back();
    std::vector<int64_t> documents;
    for (const char* shard : {"train_000000", "train_000001", "train_000002"}) {
      const auto path = settings.out / (shard + std::string(extension_of(format)));
      const auto store = format_of(path, "auto").open(path, 258, true);
      std::vector<int32_t> part(static_cast<size_t>(store->size()));
      store->read(0, store->size(), part.data());
      tokens.back().insert(tokens.back().end(), part.begin(), part.end());
      if (store->facts().documents) documents.push_back(*store->facts().documents);
    }
    CHECK(tokens.back() == tokens.front());
    // 4 ids, 8 of 10; 2, 1, 9 of 14; 5
    CHECK(documents == std::vector<int64_t>{2, 3, 1});
    CHECK_THAT(message_of<ConfigError>([&] { prepare_data(settings); }), Contains("already holds"));
  }
  CHECK(tokens.front().size() == 29);
}

}  // namespace
}  // namespace fp8train
