// fp8train generate --chat, with a model that has learned a few dialogues by heart.

#include <nlohmann/json.hpp>
#include <string>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

const fs::path kTokenizer = fs::path(FP8TRAIN_GOLDEN_DIR) / "chat/llama3";

const std::string kDialogue =
    R"({"messages": [{"role": "user", "content": "What is red?"},)"
    R"( {"role": "assistant", "content": "A colour 😀."}, {"role": "user", "content": "And a cat?"},)"
    R"( {"role": "assistant", "content": "A small animal."}]})"
    "\n";

class ChatRun {
 public:
  ChatRun() {
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      lines += kDialogue + R"({"question": "And a cat?", "answer": "Not red."})" + "\n";
    }
    write_file(folder_ / "chat.jsonl", lines);
    expect_code(0, folder_.path(),
                {"model.preset=toy", "model.vocab_size=0", "data.train=[{path: chat.jsonl}]",
                 "model.max_position_embeddings=128", "data.tokenizer=" + kTokenizer.string(),
                 "data.seq_length=128", "training.max_steps=80", "training.micro_batch_size=2",
                 "optimizer.lr=0.01", "precision.plan=bf16", "sample.prompts=[]", "threads=1",
                 "output_dir=out"});
  }

  static Words command(const Words& more, const std::string& folder = "out") {
    Words words = {"generate", "--checkpoint", folder, "--chat", "--temperature",
                   "0",        "--threads",    "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  TempDir folder_;
};

TEST_CASE("a chat model answers, ends where the template does, and knows the dialogue before") {
  const ChatRun run;
  const Outcome one = expect_code(0, run.path(), ChatRun::command({"--prompt", "What is red?"}));
  CHECK(one.out == "A colour 😀.\n");
  CHECK_THAT(one.err, !Contains("cut"));
  const Outcome cut = expect_code(
      0, run.path(), ChatRun::command({"--prompt", "What is red?", "--max-new-tokens", "3"}));
  CHECK(std::string("A colour 😀.\n").starts_with(cut.out.substr(0, cut.out.size() - 1)));
  CHECK_THAT(cut.err, Contains("cut after 3 tokens (--max-new-tokens)"));

  // Where the model does not say that a turn ends a text, the template does.
  expect_code(0, run.path(), {"export", "out", "--out", "hf"});
  auto config = nlohmann::json::parse(read_file(run.path() / "hf/config.json"));
  config["eos_token_id"] = 0;
  write_file(run.path() / "hf/config.json", config.dump());
  CHECK(expect_code(0, run.path(), ChatRun::command({"--prompt", "What is red?"}, "hf")).out ==
        "A colour 😀.\n");

  write_file(run.path() / "lines.txt", "What is red?\r\n\r\nAnd a cat?\n");
  Process dialogue(run.path(), ChatRun::command({}), {},
                   {"/bin/sh", "-c", "exec \"$0\" \"$@\" < lines.txt"});
  const Outcome lines = dialogue.wait();
  CHECK(lines.code == 0);
  CHECK(lines.out == "A colour 😀.\nA small animal.\n");

  write_file(run.path() / "ask.jsonl",
             R"({"prompt": "And a cat?"})"
             "\n\n"
             R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is "},)"
             R"( {"type": "text", "text": "red?"}]}]})"
             "\n");
  const std::vector<std::string> answers =
      lines_of(expect_code(0, run.path(), ChatRun::command({"--messages", "ask.jsonl"})).out);
  REQUIRE(answers.size() == 2);
  const auto messages = nlohmann::json::parse(answers[0]).at("messages");
  CHECK(messages[0] == nlohmann::json({{"role", "user"}, {"content", "And a cat?"}}));
  CHECK(messages[1] == nlohmann::json({{"role", "assistant"}, {"content", "Not red."}}));
  CHECK(nlohmann::json::parse(answers[1]).at("messages")[1].at("content") == "A colour 😀.");

  const std::pair<Words, const char*> wrong[] = {
      {{"--no-thinking", "--prompt", "a"}, "the chat template has no thinking to leave out"},
      {{"--messages", "ask.jsonl", "--prompt", "a"}, "give one of them"},
      {{"--chat-template", "chatml", "--prompt", "a"}, "--chat-template: chatml needs the token"},
      {{"--chat-template", "no", "--prompt", "a"}, "--chat-template: unknown chat template 'no'"},
      {{"--prompt", std::string(4000, 'x')}, "begin a new one"},
      {{"--messages", "long.jsonl"}, "long.jsonl:2: the dialogue has"},
      {{"--prompt", "caf\xE9"}, "--prompt: a message is not UTF-8"},
      {{"--prompt", "a", "--system", "\xE2"}, "--system: a message is not UTF-8"}};
  write_file(run.path() / "long.jsonl", R"({"prompt": "And a cat?"})"
                                        "\n"
                                        R"({"prompt": ")" +
                                            std::string(4000, 'x') + "\"}\n");
  for (const auto& [more, message] : wrong) {
    CHECK_THAT(expect_code(2, run.path(), ChatRun::command(more)).err, Contains(message));
  }
  write_file(run.path() / "ask.jsonl", R"({"messages": []})");
  CHECK_THAT(expect_code(3, run.path(), ChatRun::command({"--messages", "ask.jsonl"})).err,
             Contains("ask.jsonl:1: the last message is not the user's"));
  CHECK_THAT(expect_code(2, run.path(), {"generate", "--checkpoint", "out", "--system", "a"}).err,
             Contains("--system is for dialogues; add --chat"));

  // Texts of several prompts and seeds, three at a time.
  write_file(run.path() / "prompts.jsonl", "{\"prompt\": \"What is\"}\n{\"prompt\": \"And\"}\n");
  const Words common = {"generate", "--checkpoint", "out", "--max-new-tokens", "12"};
  const auto with = [&](const Words& more) {
    Words words = common;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::string> texts =
      lines_of(expect_code(0, run.path(),
                           with({"--prompts", "prompts.jsonl", "--samples", "2", "--seed", "5",
                                 "--batch-size", "3"}))
                   .out);
  REQUIRE(texts.size() == 4);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = nlohmann::json::parse(texts[i]);
    CHECK(text.at("prompt") == (i < 2 ? "What is" : "And"));
    CHECK(text.at("seed") == 5 + i % 2);
    const std::string alone = expect_code(0, run.path(),
                                          with({"--prompt", text.at("prompt").get<std::string>(),
                                                "--seed", std::to_string(5 + i % 2)}))
                                  .out;
    // Bytes that are no characters are U+FFFD in JSON.
    const nlohmann::json line = text.at("text").get<std::string>() + "\n";
    const auto replace = nlohmann::json::error_handler_t::replace;
    CHECK(line.dump() == nlohmann::json(alone).dump(-1, ' ', false, replace));
  }
  write_file(run.path() / "prompts.jsonl", "{\"prompt\": 1}\n");
  CHECK_THAT(expect_code(3, run.path(), with({"--prompts", "prompts.jsonl"})).err,
             Contains("prompts.jsonl:1: expected an object with \"prompt\""));
  write_file(run.path() / "prompts.jsonl", "{\"prompt\": \"a\", \"prompt\": \"b\"}\n");
  CHECK_THAT(expect_code(3, run.path(), with({"--prompts", "prompts.jsonl"})).err,
             Contains("prompts.jsonl:1") && Contains("prompt"));
  write_file(run.path() / "prompts.jsonl",
             "{\"prompt\": \"a\"}\n{\"prompt\": \"b\", \"max_new_tokens\": 9}\n");
  CHECK_THAT(expect_code(3, run.path(), with({"--prompts", "prompts.jsonl"})).err,
             Contains("prompts.jsonl:2: unknown key 'max_new_tokens'"));
  write_file(run.path() / "prompts.jsonl", "\n");
  CHECK_THAT(expect_code(3, run.path(), with({"--prompts", "prompts.jsonl"})).err,
             Contains("prompts.jsonl: holds no prompts"));
  CHECK_THAT(expect_code(2, run.path(), with({"--samples", "2", "--chat"})).err,
             Contains("leave out --chat"));
  CHECK_THAT(expect_code(2, run.path(), with({"--samples", "2", "--batch-size", "257"})).err,
             Contains("--batch-size: 257 is not in [1, 256]"));
}

}  // namespace
}  // namespace fp8train::test
