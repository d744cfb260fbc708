// Model folders as transformers writes them (tests/golden/make_folders.py): import, a step, a
// checkpoint and an export, with every file and every key of config.json compared.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

const fs::path kFolders = fs::path(FP8TRAIN_GOLDEN_DIR) / "folders";

/// Keys that an export may have in addition: each of them says what the folder says in the words
/// of the other version of transformers, or gives a default.
constexpr std::array kAdded = {"torch_dtype",     "dtype",    "rope_theta", "rope_scaling",
                               "rope_parameters", "head_dim", "n_ctx",      "tie_word_embeddings"};

struct Counts {
  int files = 0, files_kept = 0, files_written = 0, files_named = 0;
  int keys = 0, keys_kept = 0, keys_changed = 0, keys_named = 0, keys_added = 0;

  std::string text() const {
    return fmt::format(
        "{} files: {} as they are, {} written, {} named; {} keys: {} as they are, {} changed, {} "
        "named, and {} more",
        files, files_kept, files_written, files_named, keys, keys_kept, keys_changed, keys_named,
        keys_added);
  }
};

Json json_in(const fs::path& file) {
  return Json::parse(read_file(file));
}

/// `dtype`: of the weights in `to`. `said`: what the program printed.
void compare_config(const fs::path& from, const fs::path& to, const std::string& dtype,
                    const std::string& said, Counts& counts) {
  const Json before = json_in(from / "config.json");
  const Json after = json_in(to / "config.json");
  for (const auto& [key, value] : before.items()) {
    CAPTURE(key);
    ++counts.keys;
    if (!after.contains(key)) {
      CHECK(key == "auto_map");
      CHECK_THAT(said, Contains("'" + key + "'"));
      ++counts.keys_named;
    } else if (key == "dtype" && dtype != value) {
      CHECK(after[key] == dtype);
      ++counts.keys_changed;
    } else {
      CHECK(after[key].dump() == value.dump());
      ++counts.keys_kept;
    }
  }
  for (const auto& [key, value] : after.items()) {
    CAPTURE(key);
    if (!before.contains(key)) {
      CHECK(std::ranges::find(kAdded, key) != kAdded.end());
      ++counts.keys_added;
    }
  }
}

void compare_files(const fs::path& from, const fs::path& to, const std::string& said,
                   Counts& counts) {
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (entry.is_directory()) {
      continue;
    }
    const std::string name = entry.path().lexically_relative(from).string();
    CAPTURE(name);
    ++counts.files;
    if (name == "config.json" || name == "model.safetensors") {
      CHECK(fs::exists(to / name));
      ++counts.files_written;
    } else if (fs::exists(to / name)) {
      CHECK(same_bytes(entry.path(), to / name));
      ++counts.files_kept;
    } else {
      const bool is_named = name.starts_with('.') || said.find(name) != std::string::npos;
      CHECK(is_named);
      ++counts.files_named;
    }
  }
}

Words training(const fs::path& model, const Words& more = {}) {
  Words words = {"model.from=" + model.string(),
                 "data.train=[{path: text.txt}]",
                 "data.seq_length=32",
                 "training.max_steps=1",
                 "training.micro_batch_size=2",
                 "threads=1",
                 "output_dir=run"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("checkpoints and exports have all files and keys of the folder of the model") {
  Counts checkpoint;
  Counts exported;
  for (const auto& folder : fs::directory_iterator(kFolders)) {
    CAPTURE(folder.path().filename().string());
    const TextFolder work;
    const Outcome run = expect_code(0, work.path(), training(folder.path()));
    const Outcome out =
        expect_code(0, work.path(), {"export", "run", "--out", "out", "--dtype", "bf16"});
    const std::string said = run.out + run.err + out.out + out.err;
    const fs::path saved = work / "run/checkpoints/step-000001";
    compare_config(folder.path(), saved, "float32", said, checkpoint);
    compare_files(folder.path(), saved, said, checkpoint);
    compare_config(folder.path(), work / "out", "bfloat16", said, exported);
    compare_files(folder.path(), work / "out", said, exported);
  }
  CHECK(exported.text() ==
        "80 files: 52 as they are, 20 written, 8 named; 267 keys: 265 as they are, 0 changed, 2 "
        "named, and 25 more");
  CHECK(checkpoint.text() ==
        "80 files: 52 as they are, 20 written, 8 named; 267 keys: 255 as they are, 10 changed, 2 "
        "named, and 25 more");
}

TEST_CASE("what is not copied and dropout are named where there are copies and where it trains") {
  const TextFolder work;
  fs::copy(kFolders / "qwen3-4", work / "model", fs::copy_options::recursive);
  fs::permissions(work / "model/config.json", fs::perms::owner_write, fs::perm_options::add);
  Json config = json_in(work / "model/config.json");
  config["attention_dropout"] = 0.1;
  config["auto_map"] = {{"AutoConfig", "a.B"}};
  write_file(work / "model/config.json", config.dump());
  const Words run = training("model");
  const auto said = [&](Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = expect_code(0, work.path(), words);
    std::string notes;
    for (const char* note : {"not copied: ", "there is no dropout", "'auto_map'"}) {
      notes += (done.out + done.err).find(note) == std::string::npos ? "" : note;
    }
    return notes;
  };
  const std::string all = "not copied: there is no dropout'auto_map'";
  CHECK(said({"check"}, run) == all);
  CHECK(said({}, run) == all);
  CHECK(said({"export", "model", "--out", "out"}, {}) == "not copied: 'auto_map'");
  CHECK(said({"explain"}, run).empty());
  CHECK(said({"estimate"}, run).empty());
  CHECK(said({"generate", "model", "--prompt", "a", "--max-new-tokens", "1"}, {}).empty());
  CHECK(said({"eval", "model", "--data", "text.txt", "--seq-length", "32"}, {}).empty());
  CHECK(said({"export", "model", "--to", "gguf", "--out", "a.gguf"}, {}).empty());
}

TEST_CASE("quantize has the files of a folder too, and names the others") {
  const TextFolder work;
  const fs::path from = kFolders / "qwen3-4";
  const Outcome done = expect_code(0, work.path(), {"quantize", from.string(), "--out", "out"});
  Counts counts;
  compare_files(from, work / "out", done.err, counts);
  CHECK(counts.files_kept == 6);
  CHECK(counts.files_named == 4);
}

TEST_CASE("a rate of pre-training for a trained model gets a warning, and is not changed") {
  const TextFolder work;
  const auto said = [&](const Words& more, bool checks) {
    Words words = training(kFolders / "llama-5", more);
    if (checks) {
      words.insert(words.begin(), "check");
    }
    const Outcome done = expect_code(0, work.path(), words);
    return done.out + done.err;
  };
  const std::string warning =
      "optimizer.lr: 0.0003 without warm-up can undo what the model of model.from has learned; ";
  for (const bool checks : {true, false}) {
    CAPTURE(checks);
    const Words length = {"training.max_steps=150"};
    const std::string usual = said(checks ? length : Words(), checks);
    CHECK_THAT(usual, Contains("optimizer.lr is not given: 1e-05, after ") &&
                          !Contains("can undo what the model"));
    const std::string given = said({"optimizer.lr=3e-4", "output_dir=other"}, checks);
    CHECK_THAT(given, Contains(warning + "unless it was trained at this rate, set optimizer.lr: "
                                         "1e-5 and scheduler.warmup_steps: 1\n"));
    CHECK_THAT(given, !Contains("is not given: 1e-05"));
    CHECK(given.find(warning) == given.rfind(warning));
  }
  CHECK_THAT(said({"training.max_epochs=0.01", "output_dir=epochs"}, false),
             Contains("scheduler.warmup_steps is not given: 1, which is 3 % of the run's ") &&
                 Contains(" steps\n"));
  CHECK_THAT(read_file(work / "epochs/config.resolved.yaml"), Contains("\n  warmup_steps: 1\n"));
  CHECK_THAT(said({"optimizer.lr=9e-5"}, true), !Contains("can undo"));
  CHECK_THAT(said({"optimizer.lr=3e-4", "scheduler.warmup_steps=3", "training.max_steps=9"}, true),
             !Contains("can undo"));
}

TEST_CASE("files next to a tokenizer.model are copied too") {
  const TextFolder work;
  fs::copy(kFolders / "mistral-4", work / "model");
  fs::remove(work / "model/tokenizer.json");
  write_file(work / "model/chat_template.jinja", "{{ messages }}");
  write_file(work / "model/NOTICE", "x");
  expect_code(0, work.path(), training("model"));
  expect_code(0, work.path(), {"export", "run", "--out", "out"});
  for (const char* name : {"tokenizer.model", "special_tokens_map.json", "chat_template.jinja",
                           "tokenizer_config.json", "NOTICE"}) {
    CAPTURE(name);
    CHECK(same_bytes(work / "model" / name, work / "out" / name));
  }
}

/// A tokenizer of ChatML without a template.
void copy_tokenizer(const fs::path& to) {
  fs::create_directories(to);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kFolders / "qwen3-5" / name, to / name);
  }
}

TEST_CASE("a chat template that was named is part of checkpoints, exports and prepared data") {
  const TextFolder work;
  copy_tokenizer(work / "plain");
  write_file(work / "mine.jinja",
             "{% for m in messages %}<|im_start|>{{ m.role }} says\n{{ m.content }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant says\n{% endif %}");
  write_file(work / "chat.jsonl", R"({"messages": [{"role": "user", "content": "Hi"},)"
                                  R"( {"role": "assistant", "content": "Hello"}]})"
                                  "\n");
  const std::string chosen = GENERATE("chatml", "mine.jinja");
  CAPTURE(chosen);
  expect_code(0, work.path(),
              {"model.preset=toy", "data.train=[{path: chat.jsonl}]", "data.tokenizer=plain",
               "data.chat_template=" + chosen, "data.seq_length=32", "training.max_steps=1",
               "training.micro_batch_size=1", "threads=1", "output_dir=run"});
  expect_code(0, work.path(), {"export", "run", "--out", "out"});
  expect_code(0, work.path(),
              {"data", "prepare", "chat.jsonl", "--out", "tokens", "--tokenizer", "plain",
               "--chat-template", chosen});
  const std::string text = read_file(work / "run/checkpoints/step-000001/chat_template.jinja");
  CHECK_THAT(text, Contains("<|im_start|>"));
  CHECK(read_file(work / "out/chat_template.jinja") == text);
  CHECK(read_file(work / "tokens/chat_template.jinja") == text);
  expect_code(0, work.path(),
              {"generate", "--checkpoint", "out", "--chat", "--prompt", "Hi", "--max-new-tokens",
               "2", "--threads", "1"});
}

TEST_CASE("an answer ends at every token of both lists, of the folder and of its export") {
  const TextFolder work;
  fs::copy(kFolders / "qwen3-5", work / "model");
  Json config = json_in(work / "model/config.json");
  const auto ends_at_once = [&](const fs::path& folder) {
    const Outcome answer =
        expect_code(0, work.path(),
                    {"generate", "--checkpoint", folder.string(), "--chat", "--prompt", "Hi",
                     "--max-new-tokens", "3", "--threads", "1"});
    CHECK_THAT(answer.err, !Contains("cut after"));
    return answer.out == "\n";
  };
  std::vector<int> low;
  std::vector<int> high;
  for (int id = 0; id < config["vocab_size"]; ++id) {
    (id < 140 ? low : high).push_back(id);
  }
  config["eos_token_id"] = low;
  write_file(work / "model/config.json", config.dump());
  write_file(work / "model/generation_config.json", Json{{"eos_token_id", high}}.dump());
  CHECK(ends_at_once("model"));
  expect_code(0, work.path(), training("model"));
  expect_code(0, work.path(), {"export", "run", "--out", "out"});
  CHECK(ends_at_once("out"));
  CHECK(json_in(work / "out/config.json")["eos_token_id"] == low);
  CHECK(json_in(work / "out/generation_config.json")["eos_token_id"] == high);
}

}  // namespace
}  // namespace fp8train::test
