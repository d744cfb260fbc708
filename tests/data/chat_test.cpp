// Dialogues as ids, against transformers' apply_chat_template (tests/golden/make_chat.py).

#include "data/chat/chat_template.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
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
  for (const auto& [chat_template, name] : kChatTemplates) {
    if (chat_template == ChatTemplate::automatic) continue;
    const auto tokenizer = open_tokenizer(kChat / name);
    const ChatEncoder automatic(*tokenizer, ChatTemplate::automatic);
    const ChatEncoder named(*tokenizer, chat_template);
    CHECK(automatic.form() == named.form());
    compare_with_fixture(std::string(name), automatic, dialogues);
  }
}

TEST_CASE("white space that belongs to a token is left out", "[data][chat]") {
  const auto tokenizer = open_tokenizer(kChat / "chatml-strips");
  const int32_t end = tokenizer->token_id("<|im_end|>");
  REQUIRE((tokenizer->strips(end).before && tokenizer->strips(end).after));
  compare_with_fixture("chatml-strips", ChatEncoder(*tokenizer, ChatTemplate::automatic),
                       golden_dialogues());
}

TEST_CASE("special tokens in a message are text", "[data][chat]") {
  for (const auto& [name, token] : {std::pair("llama3", "<|eot_id|>"),
                                    std::pair("qwen", "<|im_end|>"), std::pair("llama2", "</s>")}) {
    INFO(name);
    const auto tokenizer = open_tokenizer(kChat / name);
    const ChatEncoder encoder(*tokenizer, ChatTemplate::automatic);
    const int32_t id = tokenizer->token_id(token);
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

TEST_CASE("templates are recognized by what they contain, or refused", "[data][chat]") {
  const auto form = [](const std::string& jinja) {
    return recognize_chat_template(jinja, "tokenizer_config.json");
  };
  const std::string chatml =
      "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}";
  const std::string system = "{{ '<|im_start|>system\\nBe good.<|im_end|>\\n' }}";
  const std::string llama = "{{ bos_token }}{{ '<|start_header_id|>' + role + m | trim + eot }}";
  CHECK(form(chatml).chat_template == ChatTemplate::chatml);
  // As Python code sets it, with line feeds, and joined by ~.
  CHECK(form("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
             "'\n'}}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}") ==
        ChatForm{ChatTemplate::chatml, ""});
  CHECK(form("{{ '<|im_start|>' ~ role ~ '\\n' ~ content ~ '<|im_end|>' ~ '\\n' }}") ==
        ChatForm{ChatTemplate::chatml, ""});
  CHECK(form("{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}") ==
        ChatForm{ChatTemplate::qwen, "You are a helpful assistant."});
  CHECK(form("{{- '<|im_start|>system\\n' }}" + system + chatml) ==
        ChatForm{ChatTemplate::qwen, "Be good."});
  const std::string qwen = R"(
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- endif %}
    {{- "\n\n# Tools\n\n...</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
            {{- '<|im_start|>user' }}
        {{- '\n<tool_response>\n' }}
    {{- '<|im_start|>assistant\n' }})";  // the parts of Qwen2.5's own that matter
  CHECK(form(qwen) == ChatForm{ChatTemplate::qwen, "You are Qwen."});
  const std::string llama3 =
      "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ "
      "message['content'] | trim + '<|eot_id|>' %}{% set content = bos_token + content %}";
  CHECK(form(llama3) == ChatForm{ChatTemplate::llama3, ""});
  CHECK(form(llama + "<|eot_id|>") == ChatForm{ChatTemplate::llama3, ""});
  for (const std::string& unknown :
       {std::string("{{ '<start_of_turn>' + role }}"),
        "'<|im_start|>assistant\\n<think>\\n'" + chatml,
        "{{ strftime_now('%d') }}<|eot_id|>" + llama, std::string("[SYSTEM_PROMPT] [INST]"),
        std::string("{{ '[INST] ' + message['content'] + ' [/INST]' }}"),
        std::string("{{ '[INST] ' + message['content'] + '[/INST]' }}"),  // no system message
        std::string("{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"),
        std::string("{{'<|im_start|>' + role + '<|im_sep|>\\n' + content + '<|im_end|>\\n'}}"),
        "{{ bos_token }}" + chatml, chatml + "{{ eos_token }}",
        std::string("{{'<|im_start|>' + role + '\\n' + content + '<|im_end|>'}}{% endfor %}"),
        std::string("{{'<|im_start|>' + role + '\\n' + content|trim + '<|im_end|>' + '\\n'}}"),
        "{{ '<|im_start|>system\\nIt\\'s you.<|im_end|>\\n' }}" + chatml,
        "{{ '<|im_start|>system\\nOne.\\nTwo.<|im_end|>\\n' }}" + chatml,
        "{{ '<|im_start|>system\\n' + system_message + '<|im_end|>\\n' }}" + chatml,
        std::string("{{ '<|start_header_id|>' + role + m | trim + '<|eot_id|>' }}"),
        std::string("{{ bos_token + '<|start_header_id|>' + role + m + '<|eot_id|>' }}"),
        llama + "<|start_header_id|>system<|end_header_id|>\\n\\nBe good.<|eot_id|>"}) {
    INFO(unknown);
    CHECK_THROWS_WITH(form(unknown), Catch::Contains("data.chat_template: auto") &&
                                         Catch::Contains("tokenizer_config.json"));
  }
  CHECK_THROWS_WITH(ChatEncoder(*make_byte_tokenizer(), ChatTemplate::llama3),
                    Catch::Contains("'<|start_header_id|>'"));
  CHECK_THROWS_WITH(ChatEncoder(*make_byte_tokenizer(), ChatTemplate::automatic),
                    Catch::Contains("no chat template"));
  CHECK_THROWS_WITH(form("{{ strftime_now('%d') }}<|eot_id|>" + llama),
                    Catch::Contains("today's date (strftime_now)"));
  CHECK_THROWS_WITH(chat_template_named("llama4", "--chat-template"),
                    Catch::Contains("Unknown chat template 'llama4' (expected auto, llama3"));
}

TEST_CASE("records of other programs are dialogues too", "[data][chat]") {
  const Dialogue shared = read_dialogue(
      R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
      "f:1");
  REQUIRE(shared.size() == 2);
  CHECK(shared[0].role == ChatRole::user);
  CHECK((shared[1].role == ChatRole::assistant && shared[1].is_target));
  const Dialogue pair = read_dialogue(R"({"prompt": "a", "completion": "b"})", "f:1");
  CHECK((pair[0].content == "a" && pair[1].content == "b" && pair[1].is_target));
  CHECK((pair[0].role == ChatRole::none && pair[1].role == ChatRole::none));  // no template
  const Dialogue task = read_dialogue(
      R"({"instruction": "Sum up.", "input": "a b", "output": "c", "system": "Be brief."})", "f:1");
  REQUIRE(task.size() == 3);
  CHECK((task[0].role == ChatRole::system && task[0].content == "Be brief."));
  CHECK((task[1].role == ChatRole::user && task[1].content == "Sum up.\na b"));
  CHECK((task[2].content == "c" && task[2].is_target));
  const Dialogue question = read_dialogue(R"({"question": "a", "answer": "b"})", "f:1");
  CHECK((question[0].role == ChatRole::user && question[1].role == ChatRole::assistant));
  const Dialogue lists = read_dialogue(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})",
      "f:1");
  REQUIRE(lists.size() == 4);
  CHECK((!lists[1].is_target && lists[3].is_target));
  const Dialogue weighted = read_dialogue(
      R"({"messages": [{"role": "assistant", "content": "a", "weight": 0},
          {"role": "assistant", "content": "b", "weight": 1}]})",
      "f:1");
  CHECK((!weighted[0].is_target && weighted[1].is_target));
  const Dialogue trained = read_dialogue(
      R"({"messages": [{"role": "assistant", "content": "a", "train": false},
          {"role": "assistant", "content": "b", "loss": true},
          {"role": "assistant", "content": "b", "weight": 1, "loss": false}]})",
      "f:1");
  CHECK((!trained[0].is_target && trained[1].is_target && !trained[2].is_target));
}

TEST_CASE("a key of a record is read, named, or refused if it changes what is learned",
          "[data][chat]") {
  const Dialogue shared = read_dialogue(
      R"({"system": "s", "conversations": [{"from": "human", "value": "a"},
          {"from": "gpt", "value": "b"}]})",
      "f:1");
  REQUIRE(shared.size() == 3);
  CHECK((shared[0].role == ChatRole::system && shared[0].content == "s" && !shared[0].is_target));
  std::string ignored;
  const auto note = [&](const std::string& key) { ignored += key + " "; };
  const std::string answer = R"("messages": [{"role": "assistant", "content": "a")";
  read_dialogue("{" + answer + R"(, "name": "n", "tool_calls": []}], "id": 1, "tools": null,
      "functions": [], "source": "x", "images": ""})",
                "f:1", note);
  CHECK(ignored == "messages.name id source ");
  const std::pair<std::string, const char*> refused[] = {
      {answer + R"(}], "tools": [{}])", "f:1: 'tools' is not read: tools and calls of functions"},
      {answer + R"(}], "label": false)", "'label' is not read: good and bad answers"},
      {R"("instruction": [], "input": "b", "output": "c")", "'input' next to a list of messages"},
      {answer + R"(, "function_call": {"name": "f"}}])", "'messages.function_call' is not read"},
      {answer + R"(, "weight": 0.5}])", "message 1: 'weight' is 0.5; expected 0"},
      {answer + R"(, "train": "no"}])", "message 1: 'train' is \"no\""},
      {R"("messages": [{"role": "system", "content": "a"}], "system": "b")",
       "'system' next to another system message"},
      {R"("prompt": "a", "completion": "b", "system": "c")", "'system' next to a prompt"}};
  for (const auto& [json, message] : refused) {
    CHECK_THROWS_WITH(read_dialogue("{" + json + "}", "f:1"), Catch::Contains(message));
  }
  for (const std::string key :
       {"functions", "rejected", "kto_tag", "weight", "train", "input_ids", "context", "input"}) {
    CHECK_THROWS_WITH(read_dialogue("{" + answer + "}], \"" + key + "\": 0.5}", "f:1"),
                      Catch::Contains("f:1: '" + key + "' is not read: "));
  }
}

TEST_CASE("a prompt and a completion that are texts have no template", "[data][chat]") {
  const auto bytes = make_byte_tokenizer();
  const ChatEncoder::Encoded encoded =
      encode_completion(*bytes, read_dialogue(R"({"prompt": "ab", "completion": "c"})", "f:1"));
  CHECK(encoded.ids == std::vector<int32_t>{'a', 'b', 'c', bytes->eos_id()});
  CHECK(mask_of(encoded) == "0011");
}

TEST_CASE("the parts of a content are joined, and reasoning is read", "[data][chat]") {
  const Dialogue parts = read_dialogue(
      R"({"messages": [
          {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]},
          {"role": "assistant", "content": [], "reasoning_content": "c", "tool_calls": null}]})",
      "f:1");
  CHECK(parts[0].content == "a b");
  CHECK_FALSE(parts[0].reasoning);
  CHECK(parts[1].content.empty());
  CHECK(parts[1].reasoning == "c");
}

TEST_CASE("a question ends with a message of the user", "[data][chat]") {
  const Dialogue question = read_question(
      R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]})",
      "f:1");
  CHECK((question.size() == 2 && question[1].content == "b"));
  CHECK(read_question(R"({"prompt": "a", "completion": "b"})", "f:1").size() == 1);
  CHECK_THROWS_WITH(read_question(R"({"text": "a"})", "f:2"), Catch::Contains("f:2: not a dialog"));
  for (const char* json :
       {R"({"messages": []})", R"({"messages": [{"role": "assistant", "content": "b"}]})"}) {
    CHECK_THROWS_WITH(read_question(json, "f:2"), Catch::Contains("f:2: the last message is not"));
  }
}

TEST_CASE("a record that is no dialogue is refused with file and line", "[data][chat]") {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "f:7:1: not JSON"},
      {R"({"text": "a"})", "f:7: not a dialogue"},
      {R"({"messages": "a"})", "not a list but string"},
      {R"({"messages": [{"role": "tool", "content": "a"}]})", "message 1: unknown role 'tool'"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "'content' is missing or not a text"},
      {R"({"messages": [{"role": "user", "content": ["a"]}]})", "a part of its content is not"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
       "message 1: a part of its content is not {\"type\": \"text\", \"text\": ...} but "
       "{\"image_url\":{},\"type\":\"image_url\"}; pictures and sounds are not read"},
      {R"({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]})",
       "'messages.tool_calls' is not read"},
      {R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": 1}]})",
       "'reasoning_content' is missing or not a text"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no message of the assistant"},
      {R"({"messages": [{"role": "assistant", "content": "a", "weight": "0"}]})",
       "message 1: 'weight' is \"0\"; expected 0"},
      {R"({"prompt": "a"})", "not a dialogue"}};
  for (const auto& [json, message] : cases) {
    CHECK_THROWS_WITH(read_dialogue(json, "f:7"), Catch::Contains(message));
  }
}

TEST_CASE("JSON lines with dialogues are not taken for documents", "[data][chat]") {
  const auto dialogue = [](const char* json) { return is_dialogue(nlohmann::json::parse(json)); };
  CHECK(dialogue(R"({"id": 3, "messages": []})"));
  CHECK(dialogue(R"({"prompt": "a", "response": "b"})"));
  CHECK(dialogue(R"({"instruction": "a", "input": "", "output": "b"})"));
  CHECK(dialogue(R"({"question": "a", "answer": "b"})"));
  CHECK(dialogue(R"({"conversations": []})"));
  CHECK_FALSE(dialogue(R"({"text": "a \"messages\": ["})"));
  CHECK_FALSE(dialogue(R"({"a": {"messages": 1}, "b": "messages"})"));
  CHECK_FALSE(dialogue(R"({"messages": [], "text": "a"})"));
  CHECK_FALSE(dialogue(R"({"prompt": "a"})"));
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
