#include "data/prepare.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "data/corpus.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/token_file.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::string decoded(const std::string& pattern, const Tokenizer& tokenizer) {
  DataSettings settings;
  settings.train = {{pattern, "llmc", 1.0}};
  const CorpusSplits splits = open_corpora(settings, tokenizer, tokenizer.vocab_size());
  std::vector<int32_t> tokens(static_cast<size_t>(splits.train.size()));
  splits.train.read(0, splits.train.size(), tokens.data());
  std::string text;
  for (const int32_t id : tokens) {
    text += id == tokenizer.eos_id() ? "|" : tokenizer.decode(std::vector<int32_t>{id});
  }
  return text;
}

TEST_CASE("prepare writes shards that hold the same tokens, twice the same bytes") {
  const test::TempDir dir;
  test::write_file(
      dir / "in.jsonl",
      "{\"text\":\"hello\"}\n{\"text\":\"wide\"}\n{\"text\":\"world\"}\n{\"text\":\"x\"}\n");
  PrepareSettings settings;
  settings.inputs = {(dir / "in.jsonl").string()};
  settings.out = dir / "out";
  settings.val_fraction = 0.25;
  settings.shard_tokens = 7;
  const PrepareReport report = prepare_data(settings);
  CHECK(report.documents == 4);
  CHECK(report.train_tokens == 17);
  CHECK(report.val_tokens == 2);
  CHECK(report.files ==
        std::vector<std::string>{"train_000000.bin", "train_000000.idx", "train_000001.bin",
                                 "train_000001.idx", "train_000002.bin", "train_000002.idx",
                                 "val_000000.bin", "val_000000.idx", "tokenizer.json",
                                 "tokenizer_config.json", "dataset.json"});
  const auto tokenizer = make_tokenizer((dir / "out").string(), {});
  CHECK(decoded((dir / "out/train_*.bin").string(), *tokenizer) == "hello|wide|world|");
  CHECK(decoded((dir / "out/val_*.bin").string(), *tokenizer) == "x|");

  CHECK_THAT(message_of<ConfigError>([&] { prepare_data(settings); }), Contains("already holds"));
  settings.out = dir / "again";
  prepare_data(settings);
  for (const std::string& name : report.files) {
    CHECK(test::read_file(dir / "out" / name) == test::read_file(dir / "again" / name));
  }
}

TEST_CASE("prepare cuts a text at its last fraction and can leave out EOS") {
  const test::TempDir dir;
  test::write_file(dir / "in.txt", "0123456789\xC3\xA9");
  PrepareSettings settings;
  settings.inputs = {(dir / "in.txt").string()};
  settings.out = dir / "out";
  settings.val_fraction = 0.3;
  settings.tokenizer = "char";
  settings.append_eos = false;
  const PrepareReport report = prepare_data(settings);
  CHECK(report.vocab_size == 11);
  const auto tokenizer = make_tokenizer((dir / "out").string(), {});
  CHECK(decoded((dir / "out/train_*.bin").string(), *tokenizer) == "0123456");
  CHECK(decoded((dir / "out/val_*.bin").string(), *tokenizer) == "789\xC3\xA9");
}

TEST_CASE("prepare gives the same tokens with any number of threads, from long and packed files") {
  const test::TempDir dir;
  const std::pair<std::string, std::string> parts = GENERATE(
      std::pair<std::string, std::string>(" and\n", " \xC3\xA9 then "),
      std::pair<std::string, std::string>(" 7, для многих\n", " слов и предложений на русском, "),
      std::pair<std::string, std::string>("许多句子。\n我们", "从前有一座山，山里有一座庙，"));
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i) {
    text += "word" + std::to_string(i % 977 * (i % 31)) + (i % 7 == 0 ? parts.first : parts.second);
  }
  test::write_file(dir / "long.txt", text);
  REQUIRE(std::system(("gzip -k " + (dir / "long.txt").string()).c_str()) == 0);
  PrepareSettings settings;
  settings.val_fraction = 0.1;
  settings.tokenizer = std::string(FP8TRAIN_GOLDEN_DIR) + "/tokenizers/qwen2/tokenizer.json";
  std::string file = test::read_file(settings.tokenizer);
  const size_t strips = file.find("\"lstrip\":true,\"rstrip\":true");
  REQUIRE(strips != std::string::npos);
  file.replace(strips, 27, "\"lstrip\":false,\"rstrip\":false");
  test::write_file(dir / "tokenizer.json", file);
  settings.tokenizer = (dir / "tokenizer.json").string();
  const auto tokenizer = make_tokenizer(settings.tokenizer, {});
  const size_t cut =
      byte_of_unit(text, split_point(static_cast<int64_t>(text.size()), 0.1), *tokenizer);
  std::vector<int32_t> expected = tokenizer->encode(text.substr(0, cut));
  expected.push_back(tokenizer->eos_id());
  for (const auto& [input, threads] : {std::pair("long.txt", 1), std::pair("long.txt.gz", 3)}) {
    settings.inputs = {(dir / input).string()};
    settings.threads = threads;
    settings.out = dir / (std::string(input) + "-out");
    const PrepareReport report = prepare_data(settings);
    CHECK(report.val_tokens > 100'000);
    const auto shard =
        llmc_format().open(settings.out / "train_000000.bin", tokenizer->vocab_size(), false);
    std::vector<int32_t> ids(static_cast<size_t>(shard->size()));
    shard->read(0, shard->size(), ids.data());
    CHECK(ids == expected);
  }
  const std::string packed = test::read_file(dir / "long.txt.gz");
  for (const auto& [name, more] : {std::pair("zeros", 300'000), std::pair("other", 10)}) {
    const std::string end = name == std::string("other") ? "x" : "";
    settings.inputs = {(dir / (std::string(name) + ".gz")).string()};
    settings.out = dir / (std::string(name) + "-out");
    test::write_file(settings.inputs[0], packed + std::string(more, '\0') + end);
    if (end.empty()) {
      CHECK(prepare_data(settings).val_tokens > 100'000);
    } else {
      CHECK_THAT(message_of<DataError>([&] { prepare_data(settings); }),
                 Contains("bytes behind the last gzip member"));
    }
  }
  test::write_file(dir / "cut.txt.gz", test::read_file(dir / "long.txt.gz").substr(0, 9000));
  settings.inputs = {(dir / "cut.txt.gz").string()};
  settings.out = dir / "cut";
  CHECK_THAT(message_of<DataError>([&] { prepare_data(settings); }), Contains("cut off"));
}

TEST_CASE("prepare refuses what it cannot do") {
  const test::TempDir dir;
  test::write_file(dir / "in.txt", "hello");
  test::write_file(dir / "in.bin", std::string("\x01\x00\x02\x00", 4));
  const std::string names = alternatives(text_format_names());
  PrepareSettings settings;
  settings.out = dir / "out";
  CHECK_THROWS_AS(prepare_data(settings), ConfigError);
  settings.inputs = {(dir / "in.bin").string()};
  CHECK_THAT(message_of<DataError>([&] { prepare_data(settings); }),
             Contains("holds tokens already; only files of format " + names + " are prepared"));
  settings.inputs = {(dir / "in.txt").string()};
  test::write_file(dir / "in.jsonl", R"({"body": "hello"})");
  settings.inputs = {(dir / "in.jsonl").string()};
  CHECK_THAT(message_of<DataError>([&] { prepare_data(settings); }), Contains("set --text-key"));
  settings.inputs = {(dir / "in.txt").string()};
  settings.tokenizer = "bite";
  CHECK_THAT(message_of<ConfigError>([&] { prepare_data(settings); }),
             Contains("--tokenizer: Unknown tokenizer 'bite'"));
  settings.tokenizer = "byte";
  settings.format = "lines";
  const std::string unknown = message_of<ConfigError>([&] { prepare_data(settings); });
  CHECK_THAT(unknown, Contains("'lines'; set --format " + names));
  for (const DataFormat* format : data_formats()) {
    CAPTURE(format->name);
    CHECK((unknown.find(format->name) == std::string::npos) == format->has_tokens());
  }
  settings.format = "";
  settings.shard_tokens = 0;
  CHECK_THROWS_AS(prepare_data(settings), ConfigError);
  settings.shard_tokens = 10;
  settings.val_fraction = -0.1;
  CHECK_THROWS_AS(prepare_data(settings), ConfigError);
}

}  // namespace
}  // namespace fp8train
