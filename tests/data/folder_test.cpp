// Folders and patterns as sources of data.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::vector<std::string> found_in(const test::TempDir& dir, const std::string& path,
                                  DataSplit split = DataSplit::train) {
  std::vector<std::string> result;
  for (const auto& file : expand_path((dir / path).string(), split)) {
    result.push_back(file.lexically_relative(dir.path()).string());
  }
  return result;
}

using FoundNames = std::vector<std::string>;

TEST_CASE("a folder is the data files in it and below, by name") {
  const test::TempDir dir;
  for (const char* folder : {"a/deep", "a/.hidden", "empty"}) {
    std::filesystem::create_directories(dir / folder);
  }
  for (const char* name : {"a/z.txt", "a/deep/b.txt.gz", "a/deep/a.txt", "a/README.md",
                           "a/.hidden/c.txt", "a/.d.txt", "a/tokenizer.json", "a/t.idx"}) {
    test::write_file(dir / name, "x");
  }
  CHECK(found_in(dir, "a") == FoundNames{"a/deep/a.txt", "a/deep/b.txt.gz", "a/z.txt"});
  CHECK(found_in(dir, "a/*.txt") == FoundNames{"a/z.txt"});
  CHECK(found_in(dir, "a/deep/?.txt*") == FoundNames{"a/deep/a.txt", "a/deep/b.txt.gz"});
  const std::string suffixes = fmt::format("{}", fmt::join(data_suffixes(), ", "));
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "empty"); }),
             Contains("empty: a folder without data files (" + suffixes + ", also with .gz") &&
                 Contains("*.md") && !Contains(".parquet"));
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "a/*.bin"); }),
             Contains("a/*.bin: no file matches this pattern"));
  CHECK(found_in(dir, "a/*") ==  // without the folder
        FoundNames{"a/README.md", "a/t.idx", "a/tokenizer.json", "a/z.txt"});
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, std::string(300, 'x')); }),
             Contains("xxx: File name too long"));
}

TEST_CASE("links to nothing in a folder of data are named, and not left out") {
  namespace fs = std::filesystem;
  const test::TempDir dir;
  fs::create_directory(dir / "a");
  test::write_file(dir / "a/b.txt", "x");
  fs::create_symlink("gone", dir / "a/c.txt");
  CHECK(found_in(dir, "a") == FoundNames{"a/b.txt", "a/c.txt"});
  // Without its index a file of ids would be read as one of another format.
  test::write_file(dir / "t.bin", std::string(64, '\1'));
  fs::create_symlink("gone", dir / "t.idx");
  const DataFormat& format = format_of(dir / "t.bin", "auto");
  CHECK(format.name == "indexed");
  CHECK_THAT(message_of<DataError>([&] { format.open(dir / "t.bin", 300, false); }),
             Contains("t.idx: it is a link to gone"));
  fs::create_symlink("gone", dir / "a/dataset.json");
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "a"); }),
             Contains("a/dataset.json: it is a link to gone"));
}

TEST_CASE("a prepared folder is its training or its validation files") {
  const test::TempDir dir;
  test::write_file(dir / "t.txt", std::string(1000, 'a') + std::string(1000, 'b'));
  PrepareSettings prepare;
  prepare.inputs = {(dir / "t.txt").string()};
  prepare.out = dir / "shards";
  prepare.val_fraction = 0.25;
  prepare.shard_tokens = 1000;
  prepare_data(prepare);
  const FoundNames train = {"shards/train_000000.bin", "shards/train_000001.bin"};
  CHECK(found_in(dir, "shards") == train);
  CHECK(found_in(dir, "shards", DataSplit::val) == FoundNames{"shards/val_000000.bin"});
  CHECK(found_in(dir, "shards", DataSplit::all).size() == 3);
  CHECK(found_in(dir, "") ==
        FoundNames{"shards/train_000000.bin", "shards/train_000001.bin", "t.txt"});

  DataSettings settings;
  settings.train = {{(dir / "shards").string(), "auto"}};
  settings.val = settings.train;
  const auto tokenizer = make_byte_tokenizer();
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 258);
  CHECK(splits.train.size() == 1501);
  CHECK(splits.val.size() == 501);
  REQUIRE(splits.train.sources().size() == 1);
  CHECK(splits.train.sources()[0].files == 2);

  prepare.out = dir / "whole";
  prepare.val_fraction = 0;
  prepare_data(prepare);
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "whole", DataSplit::val); }),
             Contains("dataset.json: lists no validation files"));
  test::write_file(dir / "whole/dataset.json", "{\"train\": 3}");
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "whole"); }),
             Contains("not a list of token"));
  test::write_file(dir / "whole/dataset.json", "{\"train\": [");
  CHECK_THAT(message_of<DataError>([&] { found_in(dir, "whole"); }),
             Contains("not a list of token"));
}

TEST_CASE("sources with weights are ranges of the corpus, of files and of texts") {
  const test::TempDir dir;
  test::write_file(dir / "a.txt", std::string(500, 'a'));
  test::write_file(dir / "b.txt", std::string(200, 'b'));
  DataSettings settings;
  settings.train = {{(dir / "a.txt").string(), "auto", 3}, {(dir / "b.txt").string(), "auto", 1}};
  settings.val_fraction = 0.1;
  const auto tokenizer = make_byte_tokenizer();
  const Corpus corpus = open_corpora(settings, *tokenizer, 258).train;
  CHECK(corpus.is_blend());
  CHECK(corpus.sources()[0].size == 450);
  CHECK(corpus.sources()[1].begin == 450);
  CHECK(corpus.sources()[1].size == 180);
  settings.val = {{(dir / "b.txt").string(), "auto", 2}};
  CHECK_THAT(message_of<ConfigError>([&] { open_corpora(settings, *tokenizer, 258); }),
             Contains("b.txt has weight 2") && Contains("weights are for data.train"));
}

TEST_CASE("Parquet is refused with the way to JSON lines") {
  const test::TempDir dir;
  test::write_file(dir / "t.parquet", std::string("PAR1\0\0\0", 7));
  CHECK_THAT(
      message_of<DataError>([&] { format_of(dir / "t.parquet", "auto"); }),
      Contains("Parquet files are not read") && Contains("duckdb -c") && Contains("t.jsonl"));
}

TEST_CASE("names of files end as the table of formats says") {
  for (const DataFormat* format : data_formats()) {
    CAPTURE(format->name);
    CHECK_FALSE(format->suffixes.front().empty());
    for (const std::string_view suffix : format->suffixes) {
      const std::string name = "name" + std::string(suffix);
      CHECK(format->has_suffix(name) == !suffix.empty());
      CHECK(format->has_suffix(name + ".gz") == (!suffix.empty() && !format->has_tokens()));
    }
    CHECK_FALSE(format->has_suffix("name.md"));
  }
}

TEST_CASE("the output of a command is data, and the command runs once") {
  const test::TempDir dir;
  setenv("FP8TRAIN_CACHE_DIR", (dir / "cache").c_str(), 1);
  const auto run = [&](const std::string& command) {
    return files_of({.path = command, .format = "command"});
  };
  const std::string ran = (dir / "ran").string();
  const std::string command = "echo once >> " + ran + "; printf '{\"text\": \"a\"}\\n'";
  for (int i = 0; i < 2; ++i) {
    const auto files = run(command);
    REQUIRE(files.size() == 1);
    CHECK(read_text_file(files[0], 100) == "{\"text\": \"a\"}\n");
    CHECK(format_of(files[0], "command").name == "jsonl");
  }
  CHECK(read_text_file(ran, 100) == "once\n");
  const std::filesystem::path before = std::filesystem::current_path();
  for (const char* const folder : {"one", "two"}) {  // files are relative to the working directory
    std::filesystem::create_directories(dir / folder);
    test::write_file(dir / folder / "a.txt", folder);
    std::filesystem::current_path(dir / folder);
    CHECK(read_text_file(run("cat a.txt")[0], 100) == folder);
  }
  std::filesystem::current_path(before);
  CHECK_THROWS_WITH(run("kill -TERM $$; exit 5"), Contains("exit code 5"));  // stops do not end it
  const auto text = run("seq 100000");
  CHECK(text[0].extension() == ".txt");
  CHECK(std::filesystem::file_size(text[0]) == 588895);
  CHECK_THROWS_WITH(run("echo a; exit 3"), "the command 'echo a; exit 3' ended with exit code 3");
  CHECK_THROWS_WITH(run("kill -9 $$"), "the command 'kill -9 $$' ended with signal 9");
  CHECK_THROWS_WITH(run("true"), "the command 'true' wrote nothing");
  CHECK_FALSE(all_tokens({{.path = "touch " + ran + "2", .format = "command"}}));
  CHECK_FALSE(std::filesystem::exists(ran + "2"));
  // Nothing is left of those that failed but their locks.
  size_t outputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir / "cache" / "commands")) {
    outputs += file.path().extension() == ".lock" ? 0 : 1;
  }
  CHECK(outputs == 4);
  unsetenv("FP8TRAIN_CACHE_DIR");
}

}  // namespace
}  // namespace fp8train
