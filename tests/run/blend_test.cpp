// Runs whose data is a blend of sources.

#include <nlohmann/json.hpp>
#include <string>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

class Sources : public TextFolder {
 public:
  Sources() {
    fs::create_directory(path() / "more");
    write_file(path() / "more/b.txt", small_text(3000));
    write_file(path() / "more/a.txt", small_text(2000));
  }
};

Words run_of(const std::string& name, const std::string& weight, const Words& more = {}) {
  Words words = {
      "model.preset=toy",
      "data.train=[{path: text.txt, weight: " + weight + "}, {path: more, weight: 0.25}]",
      "data.seq_length=32",
      "sample.prompts=[]",
      "training.max_steps=12",
      "training.micro_batch_size=2",
      "training.gradient_accumulation_steps=2",
      "logging.interval=1",
      "checkpoint.interval=4",
      "checkpoint.keep_last=9",
      "threads=1",
      "precision.plan=bf16",
      "output_dir=" + name};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("a path that is named twice has two numbers of epochs") {
  const Sources folder;
  expect_code(0, folder.path(),
              run_of("twice", "1",
                     {"data.train=[{path: more, weight: 3}, {path: more, weight: 1}]",
                      "training.max_steps=1"}));
  const std::string metrics = read_file(folder / "twice/metrics.jsonl");
  CHECK_THAT(metrics, Contains("\"more\":") && Contains("\"more#2\":"));
}

TEST_CASE("a blend that is stopped and goes on has the bits of one run") {
  const Sources folder;
  expect_code(0, folder.path(), run_of("whole", "0.75"));
  expect_code(0, folder.path(), run_of("parts", "0.75"));
  fs::remove_all(folder / "parts/checkpoints/step-000012");
  fs::remove_all(folder / "parts/checkpoints/step-000008");
  const Outcome last = expect_code(0, folder.path(), run_of("parts", "0.75"));
  CHECK_THAT(last.out, Contains("resumed from parts/checkpoints/step-000004"));
  CHECK(same_bytes(folder / "whole/checkpoints/step-000012/model.safetensors",
                   folder / "parts/checkpoints/step-000012/model.safetensors"));

  const std::vector<std::string> lines = lines_of(read_file(folder / "parts/metrics.jsonl"));
  nlohmann::json epochs;
  for (const std::string& line : lines) {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (object.contains("epochs")) epochs = object.at("epochs");
  }
  CHECK(epochs.at("text.txt").get<double>() == Approx(36.0 / 624));  // 48 samples in the end
  CHECK(epochs.at("more").get<double>() == Approx(12.0 / 155));

  const Outcome other = expect_code(4, folder.path(), run_of("parts", "0.5"));
  CHECK_THAT(other.err, Contains("train[].") && Contains("has changed"));
}

TEST_CASE("check shows what a blend reads, and what a folder holds") {
  const Sources folder;
  Words words = run_of("run", "0.75");
  words.insert(words.begin(), "check");
  const std::string out = expect_code(0, folder.path(), words).out;
  CHECK_THAT(out, Contains(" 75.0 % text.txt: ") && Contains("read 0.06 times"));
  CHECK_THAT(out, Contains(" 25.0 % more: 2 files, ") && Contains("read 0.08 times"));
  words = run_of("run", "1", {"data.train=more"});
  words.insert(words.begin(), "check");
  const std::string plain = expect_code(0, folder.path(), words).out;
  CHECK_THAT(plain, Contains("more: 2 files, ") && !Contains("% more"));
  words.back() = "data.train=[{path: nothing/*.txt}]";
  CHECK_THAT(expect_code(3, folder.path(), words).err,
             Contains("nothing/*.txt: no file matches this pattern"));
}

TEST_CASE("inspect says a line for each file, and goes on behind a damaged one") {
  const Sources folder;
  const std::string one =
      expect_code(0, folder.path(), {"data", "inspect", "text.txt", "--tokenizer", "byte"}).out;
  CHECK_THAT(one, Contains("text.txt: text, 20") && Contains(" bytes, 1 document, ") &&
                      Contains("first text") && Contains("xxh3-128"));
  write_file(folder / "more/c.npy", "\x93NUMPY");
  const Outcome many = expect_code(3, folder.path(), {"data", "inspect", "more", "text.txt"});
  CHECK(lines_of(many.out).size() == 3);
  CHECK_THAT(many.err, Contains("more/c.npy: ") && Contains("1 of 4 files"));
  const std::string json =
      expect_code(0, folder.path(), {"data", "inspect", "more/a.txt", "text.txt", "--json"}).out;
  REQUIRE(lines_of(json).size() == 2);
  CHECK(nlohmann::json::parse(lines_of(json)[0]).at("text_bytes") ==
        fs::file_size(folder / "more/a.txt"));
  for (const auto& [format, name] :
       {std::pair{"llmc", "train_000000.bin"}, std::pair{"npy", "train_000000.npy"}}) {
    expect_code(0, folder.path(),
                {"data", "prepare", "text.txt", "--tokenizer", "byte", "--output-format", format,
                 "--out", format});
    const std::string index = std::string(format) + "/train_000000.idx";
    CHECK(fs::exists(folder / index));
    const Words shards = {"data", "inspect", std::string(format) + "/" + name, index};
    CHECK_THAT(expect_code(0, folder.path(), shards).out, Contains(name) && !Contains(".idx"));
    // All of the folder: its list and its tokenizer are no data.
    const Outcome all = expect_code(
        0, folder.path(), {"data", "inspect", std::string(format) + "/*", "text.txt", "--json"});
    CHECK(all.err.empty());
    REQUIRE(lines_of(all.out).size() == 2);
    CHECK(nlohmann::json::parse(lines_of(all.out)[0]).at("bytes") ==
          fs::file_size(folder / format / name));
  }
  const Words lists = {"data", "inspect", "llmc/dataset.json", "llmc/tokenizer.json"};
  CHECK_THAT(expect_code(3, folder.path(), lists).err, Contains("2 of 2 files"));
  fs::create_directory(folder / "other");
  write_file(folder / "other/dataset.json", "[{\"text\": \"a record\"}]");
  const Words records = {"data", "inspect", "other/dataset.json", "text.txt"};
  CHECK(lines_of(expect_code(0, folder.path(), records).out).size() == 2);
  const Words alone = {"data", "inspect", "llmc/train_000000.idx", "text.txt"};
  CHECK_THAT(expect_code(3, folder.path(), alone).err, Contains("is an index"));
}

}  // namespace
}  // namespace fp8train::test
