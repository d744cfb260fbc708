// Dialogues as ids, against transformers' apply_chat_template (tests/golden/make_chat.py).

#include "data/chat/chat_encoder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/chat/dialogue_encoder.h"
#include "data/corpus.h"
#include "data/prepare.h"
#include "data/readers/data_format.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

namespace fs = std::filesystem;

const fs::path kChat = fs::path(FP8TRAIN_GOLDEN_DIR) / "chat";

std::vector<Dialogue> golden_dialogues() {
  std::vector<Dialogue> dialogues;
  chat_format().for_each_dialogue(
      kChat / "dialogues.jsonl", {},
      [&](const Dialogue& dialogue, const std::string&) { dialogues.push_back(dialogue); });
  return dialogues;
}

std::string mask_of(const ChatEncoder::Encoded& encoded) {
  std::string mask;
  for (const bool target : encoded.is_target) mask += target ? '1' : '0';
  return mask;
}

Dialogue ask(const std::string& question, const std::string& answer) {
  return {{ChatRole::user, question, false}, {ChatRole::assistant, answer, true}};
}

/// Holds a folder's dialogues against its expected.json.
void compare_with_fixture(const std::string& folder, const ChatEncoder& encoder,
                          const std::vector<Dialogue>& dialogues) {
  const auto expected = nlohmann::json::parse(read_file(kChat / folder / "expected.json"));
  REQUIRE(expected.size() == dialogues.size());
  for (size_t i = 0; i < dialogues.size(); ++i) {
    INFO(folder << ", dialogue " << i);
    if (expected[i].is_null()) {
      CHECK_THROWS_AS(encoder.encode(dialogues[i]), DataError);
      continue;
    }
    const auto ids_at = [&](const char* key) {
      return expected[i][key].get<std::vector<int32_t>>();
    };
    const ChatEncoder::Encoded encoded = encoder.encode(dialogues[i]);
    CHECK(encoded.ids == ids_at("ids"));
    CHECK(mask_of(encoded) == expected[i]["mask"].get<std::string>());
    const Dialogue question(dialogues[i].begin(), dialogues[i].end() - 1);
    CHECK(encoder.prompt(question) == ids_at("prompt"));
    if (folder == "qwen3") {
      CHECK(encoder.prompt(question, false) == ids_at("prompt_without_thinking"));
    } else {
      CHECK_THROWS_AS(encoder.prompt(question, false), ConfigError);
    }
    const auto last = std::find(encoded.is_target.rbegin(), encoded.is_target.rend(), true);
    CHECK(
        encoder.ends_answer(encoded.ids[static_cast<size_t>(encoded.is_target.rend() - last - 1)]));
  }
}

TEST_CASE("ids and masks are those of apply_chat_template", "[data][chat]") {
  const std::vector<Dialogue> dialogues = golden_dialogues();
  REQUIRE(dialogues.size() == 32);
  REQUIRE(named_templates().size() == 8);
  for (const NamedTemplate& each : named_templates()) {
    const std::string name(each.name);
    const auto tokenizer = open_tokenizer(kChat / name);
    compare_with_fixture(name, ChatEncoder(*tokenizer), dialogues);
    compare_with_fixture(name, ChatEncoder(*tokenizer, name), dialogues);
  }
}

TEST_CASE("white space that belongs to a token is left out", "[data][chat]") {
  const auto tokenizer = open_tokenizer(kChat / "chatml-strips");
  const int32_t end = SpecialTokens(*tokenizer).id_of("<|im_end|>");
  REQUIRE((tokenizer->strips(end).before && tokenizer->strips(end).after));
  compare_with_fixture("chatml-strips", ChatEncoder(*tokenizer), golden_dialogues());
}

TEST_CASE("special tokens in a message are text", "[data][chat]") {
  for (const auto& [name, token] : {std::pair("llama3", "<|eot_id|>"),
                                    std::pair("qwen", "<|im_end|>"), std::pair("llama2", "</s>")}) {
    INFO(name);
    const auto tokenizer = open_tokenizer(kChat / name);
    const ChatEncoder encoder(*tokenizer);
    const int32_t id = SpecialTokens(*tokenizer).id_of(token);
    REQUIRE(id >= 0);
    const auto count = [&](const Dialogue& dialogue) {
      const std::vector<int32_t> ids = encoder.encode(dialogue).ids;
      return std::count(ids.begin(), ids.end(), id);
    };
    const std::string attack = std::string("a") + token + "b";
    CHECK(count(ask(attack, attack)) == count(ask("a", "b")));
    const std::vector<int32_t> ids = tokenizer->encode_ordinary(attack, true);
    if (name != std::string_view("llama2")) {  // whose bytes are special tokens here
      CHECK(tokenizer->decode(ids) == attack);
    }
    CHECK(std::find(ids.begin(), ids.end(), id) == ids.end());
    CHECK(tokenizer->encode(attack) != ids);
  }
}

/// A tokenizer of bytes with these special tokens, from 300 on.
std::unique_ptr<Tokenizer> with_tokens(const std::vector<std::string>& tokens,
                                       const fs::path& folder, const std::string& jinja) {
  nlohmann::json document = nlohmann::json::parse(read_file(kChat / "chatml/tokenizer.json"));
  document["added_tokens"] = nlohmann::json::array();
  int32_t id = 10'000;
  for (const std::string& token : tokens) {
    document["added_tokens"].push_back({{"id", id++},
                                        {"content", token},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", true}});
  }
  write_file(folder / "tokenizer.json", document.dump());
  write_file(folder / "tokenizer_config.json", R"({"eos_token": ")" + tokens.front() + "\"}");
  write_file(folder / "chat_template.jinja", jinja);
  return open_tokenizer(folder);
}

/// The text with what is learned in brackets; special tokens as #1, #2, ...
std::string learned(const Tokenizer& tokenizer, const ChatEncoder::Encoded& encoded) {
  std::string text;
  bool inside = false;
  for (size_t i = 0; i <= encoded.ids.size(); ++i) {
    const bool is_target = i < encoded.ids.size() && encoded.is_target[i];
    if (is_target != inside) text += is_target ? "[" : "]";
    inside = is_target;
    if (i == encoded.ids.size()) break;
    const int32_t id = encoded.ids[i];
    text += id >= 10'000 ? "#" + std::to_string(id - 10'000)
                         : tokenizer.decode(std::vector<int32_t>{id});
  }
  return text;
}

TEST_CASE("what is learned is found in what a template wrote", "[data][chat]") {
  const Dialogue dialogue = {{ChatRole::user, "a", false, {}},
                             {ChatRole::assistant, "b", true, {}},
                             {ChatRole::user, "c", false, {}},
                             {ChatRole::assistant, "d", true, {}}};
  const std::string loop = "{% for m in messages %}";
  const std::string end = "{% endfor %}";
  struct Case {
    const char* what;
    std::string jinja, learned;
  };
  const Case cases[] = {
      {"a header, and a token that ends a message",
       loop + "<1>{{ m.role }}:{{ m.content }}<0>,\n" + end +
           "{% if add_generation_prompt %}<1>assistant:{% endif %}",
       "#1user:a#0,\n#1assistant:[b#0],\n#1user:c#0,\n#1assistant:[d#0],\n"},
      {"no token ends an answer: the next message does",
       loop + "<{{ 1 if m.role == 'user' else 2 }}>{{ m.content }}" + end +
           "{% if add_generation_prompt %}<2>{% endif %}",
       "#1a#2[b#1]c#2[d]"},
      {"the header asks for thoughts, which old answers do not have",
       loop + "<{{ 1 if m.role == 'user' else 2 }}>{{ m.content }}" + end +
           "{% if add_generation_prompt %}<2>think {% endif %}",
       "#1a#2[b#1]c#2[d]"},
      {"nothing asks for an answer, and a space is part of it",
       loop +
           "{% if m.role == 'user' %}<1>{{ m.content }}<2>{% else %} {{ m.content }} <0>{% endif "
           "%}" +
           end,
       "#1a#2[ b #0]#1c#2[ d #0]"},
      {"the end of sequence comes once, and a token has the space in front of an answer",
       loop + "{{ m.role }}: {{ m.content }}\n\n" + end + "<0>",
       "user: a\n\nassistant:[ b]\n\nuser: c\n\nassistant:[ d\n\n#0]"},
      {"the end of sequence follows the end of the answer",
       loop + "<1>{{ m.content }}<2><0>" + end + "{% if add_generation_prompt %}<1>{% endif %}",
       "#1a#2#0#1[b#2#0]#1c#2#0#1[d#2#0]"},
      {"a question that asks with nothing",
       loop + "{{ m.content }}{% if not loop.last %}<0>{{ m.role }}<1>{% endif %}" + end,
       "a#0user#1[b#0]assistant#1c#0user#1[d]"},
      {"the template says it",
       loop +
           "<1>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<0>!"
           "{% endgeneration %}{% else %}{{ m.content }}<0>{% endif %}" +
           end,
       "#1a#0#1[b#0!]#1c#0#1[d#0!]"},
  };
  for (const Case& each : cases) {
    INFO(each.what);
    const TempDir folder;
    const auto tokenizer = with_tokens({"<0>", "<1>", "<2>"}, folder.path(), each.jinja);
    CHECK(learned(*tokenizer, ChatEncoder(*tokenizer).encode(dialogue)) == each.learned);
  }
}

TEST_CASE("answers that a template writes twice or does not mark are refused", "[data][chat]") {
  const std::string body = "<1>{{ m.role }}:{{ m.content }}<0>{% endfor %}";
  const std::pair<std::string, const char*> cases[] = {
      {"last was {{ messages[-1].content }}{% for m in messages %}" + body,
       "message 2: the chat template writes this answer twice"},
      {"{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}" + body,
       "message 2: the chat template has no {% generation %} around this answer"},
      {"{% macro f(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}"
       "{% for m in messages %}{{ f(m) }}{% endfor %}",
       "{% generation %} within a macro"},
  };
  for (const auto& [jinja, message] : cases) {
    const TempDir folder;
    const auto tokenizer = with_tokens({"<0>", "<1>"}, folder.path(), jinja);
    CHECK_THROWS_WITH(ChatEncoder(*tokenizer).encode(ask("a", "b")), Catch::Contains(message));
  }
  const TempDir folder;
  const auto tokenizer = with_tokens(
      {"<0>"}, folder.path(),
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<0>"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  CHECK(learned(*tokenizer, ChatEncoder(*tokenizer)
                                .encode({{ChatRole::user, "a", false, {}},
                                         {ChatRole::assistant, "", false, {}},
                                         {ChatRole::user, "c", false, {}},
                                         {ChatRole::assistant, "", true, {}}})) == "a#0c[#0]");
}

TEST_CASE("long dialogues have the same targets as short ones", "[data][chat]") {
  const auto tokenizer = open_tokenizer(kChat / "qwen3");
  const ChatEncoder encoder(*tokenizer);
  Dialogue dialogue;
  for (int i = 0; i < 300; ++i) {
    dialogue.push_back({ChatRole::user, "a", false, {}});
    dialogue.push_back({ChatRole::assistant, "b", i == 299, {}});
  }
  const std::string mask = mask_of(encoder.encode(dialogue));
  const std::string alone = mask_of(encoder.encode(ask("a", "b")));
  CHECK(mask.substr(mask.find('1')) == alone.substr(alone.find('1')));
}

TEST_CASE("answers that are not learned, empty ones and those left out", "[data][chat]") {
  const TempDir folder;
  const std::string jinja =
      "{% for m in messages if m.content != 'x' %}<1>{{ m.role }}:{{ m.content | trim }}<0>"
      "{% endfor %}{% if add_generation_prompt %}<1>assistant:{% endif %}";
  const auto tokenizer = with_tokens({"<0>", "<1>"}, folder.path(), jinja);
  const ChatEncoder encoder(*tokenizer);
  CHECK(learned(*tokenizer, encoder.encode({{ChatRole::user, "<0>", false, {}},
                                            {ChatRole::assistant, "b", false, {}},
                                            {ChatRole::user, "", false, {}},
                                            {ChatRole::assistant, "  ", true, {}}})) ==
        "#1user:<0>#0#1assistant:b#0#1user:#0#1assistant:[#0]");
  CHECK_THROWS_WITH(encoder.encode(ask("a", "x")),
                    Catch::Contains("message 2: the chat template leaves this answer out"));
  CHECK(encoder.end_of_answer() == 10'000);
}

TEST_CASE("a chat template is that of the folder, a file or a name", "[data][chat]") {
  const TempDir folder;
  const auto tokenizer = with_tokens({"<0>"}, folder.path(), "{{ messages[0].content");
  CHECK_THROWS_WITH(
      ChatEncoder(*tokenizer),
      Catch::Contains("chat_template.jinja:1: expected }}, found the template's end"));
  const fs::path file = folder.path() / "own.jinja";
  write_file(file, "{% for m in messages %}{{ m.content }}<0>{% endfor %}");
  const ChatEncoder own(*tokenizer, file.string());
  CHECK(learned(*tokenizer, own.encode(ask("a", "b"))) == "a#0[b#0]");
  CHECK_THROWS_WITH(
      ChatEncoder(*tokenizer, "llama3"),
      Catch::Contains("data.chat_template: llama3 needs the token '<|start_header_id"));
  CHECK_THROWS_WITH(
      ChatEncoder(*tokenizer, "llama4", "--chat-template"),
      Catch::Contains("--chat-template: unknown chat template 'llama4' (expected auto"));
  CHECK_THROWS_WITH(ChatEncoder(*make_byte_tokenizer()),
                    Catch::Contains("data.chat_template: auto, but the tokenizer's folder has no"));
  write_file(file, "{{ raise_exception('no ' ~ messages[0].role) }}");
  CHECK_THROWS_WITH(ChatEncoder(*tokenizer, file.string()).encode(ask("a", "b")),
                    Catch::Contains("the chat template refuses the dialogue: no user"));
}

TEST_CASE("a prompt and a completion that are texts have no template", "[data][chat]") {
  const auto bytes = make_byte_tokenizer();
  const ChatEncoder::Encoded encoded =
      encode_completion(*bytes, read_dialogue(R"({"prompt": "ab", "completion": "c"})", "f:1"));
  CHECK(encoded.ids == std::vector<int32_t>{'a', 'b', 'c', bytes->eos_id()});
  CHECK(mask_of(encoded) == "0011");
}

TEST_CASE("prepared dialogues are those of the file itself", "[data][chat]") {
  const TempDir folder;
  const std::string all = read_file(kChat / "dialogues.jsonl");
  const fs::path file = folder.path() / "chat.jsonl";
  // Without the last one, which Llama 2 refuses.
  write_file(file, all.substr(0, all.rfind('\n', all.size() - 2) + 1));
  DataSettings settings;
  settings.tokenizer = (kChat / "llama2").string();
  settings.val_fraction = 0.2;
  settings.train = {{file.string(), "auto", 1.0}};
  const auto tokenizer = make_tokenizer(settings);
  const CorpusSplits direct = open_corpora(settings, *tokenizer, 1000);
  CHECK(direct.train.form().packing == Packing::documents);
  CHECK(direct.val.form().masks_documents);

  prepare_data({.inputs = {file.string()},
                .out = folder.path() / "out",
                .tokenizer = settings.tokenizer,
                .val_fraction = 0.2,
                .shard_tokens = 700});
  settings.train = {{(folder.path() / "out/train_*.bin").string(), "auto", 1.0}};
  settings.val = {{(folder.path() / "out/val_*.bin").string(), "auto", 1.0}};
  const CorpusSplits prepared = open_corpora(settings, *tokenizer, 1000);
  CHECK(fs::exists(folder.path() / "out/train_000002.bin"));
  for (const auto& [a, b] :
       {std::pair(&direct.train, &prepared.train), std::pair(&direct.val, &prepared.val)}) {
    REQUIRE(a->size() == b->size());
    REQUIRE(a->documents().size() == b->documents().size());
    std::vector<uint8_t> left(static_cast<size_t>(a->size()));
    std::vector<uint8_t> right(left.size());
    a->read_targets(0, a->size(), left.data());
    b->read_targets(0, b->size(), right.data());
    CHECK(left == right);
    for (size_t i = 0; i < a->documents().size(); ++i) {
      CHECK(a->documents()[i].begin == b->documents()[i].begin);
    }
  }
  settings.packing = Packing::windows;
  CHECK_THROWS_WITH(open_corpora(settings, *tokenizer, 1000),
                    Catch::Contains("data.packing: windows"));
}

TEST_CASE("dialogues for validation do not go with windows of text", "[data][chat]") {
  const TempDir folder;
  write_file(folder.path() / "t.txt", std::string(500, 'a'));
  write_file(folder.path() / "c.jsonl", R"({"prompt": "a", "completion": "b"})"
                                        "\n");
  DataSettings settings;
  settings.tokenizer = (kChat / "chatml").string();
  settings.train = {{(folder.path() / "t.txt").string(), "auto", 1.0}};
  settings.val = {{(folder.path() / "c.jsonl").string(), "auto", 1.0}};
  const auto tokenizer = make_tokenizer(settings);
  CHECK_THROWS_WITH(open_corpora(settings, *tokenizer, 1000),
                    Catch::Contains("data.val") && Catch::Contains("data.packing: documents"));
  settings.packing = Packing::documents;
  CHECK(open_corpora(settings, *tokenizer, 1000).val.form().packing == Packing::documents);
}

}  // namespace
}  // namespace fp8train::test
