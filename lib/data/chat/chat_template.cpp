#include "data/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
constexpr std::string_view kLlama31Dates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

/// The text around the messages of templates with [INST].
struct Instructions {
  std::string_view begin, end, end_of_answer;
  bool each_begins;  ///< every question begins with the token that begins a sequence
  bool trims_questions, trims_answers;
};

constexpr Instructions kLlama2 = {"[INST] ", " [/INST]", " ", true, true, true};
constexpr Instructions kMistral = {"[INST] ", "[/INST]", "", false, false, true};
constexpr Instructions kMistral1 = {" [INST] ", " [/INST]", "", false, false, false};

const Instructions& instructions_of(ChatTemplate chat_template) {
  return chat_template == ChatTemplate::llama2    ? kLlama2
         : chat_template == ChatTemplate::mistral ? kMistral
                                                  : kMistral1;
}

/// As Python's str.strip().
bool is_space(char32_t c) {
  return tokenizers::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && code_point_length(text, 0) > 0) {
    const tokenizers::CodePoint first = tokenizers::code_point_at(text, 0);
    if (!is_space(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && is_continuation(text[begin])) --begin;
    if (code_point_length(text, begin) == 0) break;
    if (!is_space(tokenizers::code_point_at(text, begin).value)) break;
    text = text.substr(0, begin);
  }
  return text;
}

/// The text of the template in one of the tokenizer's files; of several named ones that which is
/// called "default".
std::string template_in(const TokenizerFile& file) {
  if (file.name == "chat_template.jinja") return file.text;
  if (file.name != "tokenizer_config.json") return "";
  const nlohmann::json config = nlohmann::json::parse(file.text, nullptr, false);
  if (!config.is_object() || !config.contains("chat_template")) return "";
  const nlohmann::json& value = config["chat_template"];
  if (value.is_string()) return value.get<std::string>();
  for (const nlohmann::json& entry : value) {
    if (entry.is_object() && entry.value("name", "") == "default") {
      return entry.value("template", "");
    }
  }
  return "";
}

ChatForm find_form(const Tokenizer& tokenizer) {
  for (const TokenizerFile& file : tokenizer.files()) {
    const std::string jinja = template_in(file);
    if (!jinja.empty()) return recognize_chat_template(jinja, file.name);
  }
  throw ConfigError(
      "data.chat_template: auto, but the tokenizer's folder has no chat template; name one "
      "(llama3, llama3.1, llama2, mistral, mistral-v1, qwen, chatml)");
}

/// Questions and answers alternate, after at most one system message.
void check_turns(const Dialogue& dialogue) {
  const bool has_system = !dialogue.empty() && dialogue.front().role == ChatRole::system;
  for (size_t i = has_system ? 1 : 0; i < dialogue.size(); ++i) {
    const bool is_question = (i - (has_system ? 1 : 0)) % 2 == 0;
    if (dialogue[i].role != (is_question ? ChatRole::user : ChatRole::assistant)) {
      throw DataError(
          fmt::format("message {}: this chat template takes user and assistant alternately, with a "
                      "system message at most before them",
                      i));
    }
  }
}

/// Collects ids; texts that follow each other are encoded together.
class IdWriter {
 public:
  IdWriter(const Tokenizer& tokenizer, ChatEncoder::Encoded& out)
      : tokenizer_(tokenizer), out_(out) {}

  void add(const ChatPart& part) {
    if (part.id >= 0) {
      flush();
      out_.ids.push_back(part.id);
      out_.is_target.push_back(part.is_target);
      return;
    }
    check(part.is_target || answer_.empty(), "a token lies between an answer and what follows");
    (part.is_target ? answer_ : before_) += part.text;
  }

  /// A token that holds the end of the text before an answer and its beginning is a target.
  void flush() {
    const bool at_start = out_.ids.empty();
    const std::vector<int32_t> ids = tokenizer_.encode_ordinary(before_ + answer_, at_start);
    size_t first_target = ids.size();
    if (!answer_.empty()) {
      const std::vector<int32_t> alone = tokenizer_.encode_ordinary(before_, at_start);
      const auto [differs, ignored] =
          std::mismatch(ids.begin(), ids.end(), alone.begin(), alone.end());
      first_target = static_cast<size_t>(differs - ids.begin());
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      out_.ids.push_back(ids[i]);
      out_.is_target.push_back(i >= first_target);
    }
    before_.clear();
    answer_.clear();
  }

 private:
  const Tokenizer& tokenizer_;
  ChatEncoder::Encoded& out_;
  std::string before_, answer_;
};

}  // namespace

std::string_view name_of(ChatTemplate chat_template) {
  return kChatTemplates[static_cast<size_t>(chat_template)].second;
}

ChatTemplate chat_template_named(std::string_view name, std::string_view option) {
  std::string known;
  for (const auto& [value, text] : kChatTemplates) {
    if (text == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  throw ConfigError(
      fmt::format("{}: Unknown chat template '{}' (expected {})", option, name, known));
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template)
    : tokenizer_(tokenizer), bos_(tokenizer.bos_id()), eos_(tokenizer.eos_id()) {
  form_ =
      chat_template == ChatTemplate::automatic ? find_form(tokenizer) : ChatForm{chat_template, ""};
  if (chat_template == ChatTemplate::qwen) form_.default_system = kQwenSystem;
  switch (form_.chat_template) {
    case ChatTemplate::llama3:
    case ChatTemplate::llama31:
      begin_ = require("<|start_header_id|>");
      end_of_header_ = require("<|end_header_id|>");
      end_ = require("<|eot_id|>");
      if (bos_ < 0) bos_ = require("<|begin_of_text|>");
      break;
    case ChatTemplate::qwen:
    case ChatTemplate::chatml:
      begin_ = require("<|im_start|>");
      end_ = require("<|im_end|>");
      break;
    default:
      if (bos_ < 0) bos_ = require("<s>");
      if (eos_ < 0) eos_ = require("</s>");
  }
}

int32_t ChatEncoder::require(std::string_view token) const {
  const int32_t id = tokenizer_.token_id(token);
  if (id < 0) {
    throw ConfigError(
        fmt::format("data.chat_template: {} needs the token '{}', which the tokenizer does not "
                    "have; name another template, or use the tokenizer of a chat model",
                    name_of(form_.chat_template), token));
  }
  return id;
}

ChatEncoder::Encoded ChatEncoder::encode(const Dialogue& dialogue) const {
  Parts parts;
  switch (form_.chat_template) {
    case ChatTemplate::llama3:
    case ChatTemplate::llama31:
      add_headed(dialogue, parts);
      break;
    case ChatTemplate::qwen:
    case ChatTemplate::chatml:
      add_chatml(dialogue, parts);
      break;
    default:
      add_instructions(dialogue, parts);
  }
  Encoded encoded;
  IdWriter writer(tokenizer_, encoded);
  for (const ChatPart& part : parts) {
    writer.add(part);
  }
  writer.flush();
  return encoded;
}

void ChatEncoder::add_headed(const Dialogue& dialogue, Parts& parts) const {
  const auto add = [&](ChatRole role, const std::string& text, bool is_target) {
    parts.push_back({"", begin_, false});
    parts.push_back({std::string(name_of(role)), -1, false});
    parts.push_back({"", end_of_header_, false});
    parts.push_back({"\n\n", -1, false});
    parts.push_back({text, -1, is_target});
    parts.push_back({"", end_, is_target});
  };
  parts.push_back({"", bos_, false});
  size_t next = 0;
  if (form_.chat_template == ChatTemplate::llama31) {
    std::string system(kLlama31Dates);
    if (dialogue.front().role == ChatRole::system) {
      system += trimmed(dialogue[next++].content);
    }
    add(ChatRole::system, system, false);
  }
  for (; next < dialogue.size(); ++next) {
    const ChatMessage& message = dialogue[next];
    add(message.role, std::string(trimmed(message.content)), message.is_target);
  }
}

void ChatEncoder::add_chatml(const Dialogue& dialogue, Parts& parts) const {
  const auto add = [&](ChatRole role, const std::string& text, bool is_target) {
    parts.push_back({"", begin_, false});
    parts.push_back({fmt::format("{}\n", name_of(role)), -1, false});
    parts.push_back({text, -1, is_target});
    parts.push_back({"", end_, is_target});
    parts.push_back({"\n", -1, false});
  };
  if (!form_.default_system.empty() && dialogue.front().role != ChatRole::system) {
    add(ChatRole::system, form_.default_system, false);
  }
  for (const ChatMessage& message : dialogue) {
    add(message.role, message.content, message.is_target);
  }
}

/// A text in which [INST] and [/INST] are tokens where the tokenizer has such.
void ChatEncoder::add_text(std::string_view text, bool is_target, Parts& parts) const {
  for (const std::string_view mark : {std::string_view("[INST]"), std::string_view("[/INST]")}) {
    const size_t at = text.find(mark);
    const int32_t id = at == std::string_view::npos ? -1 : tokenizer_.token_id(mark);
    if (id >= 0) {
      parts.push_back({std::string(text.substr(0, at)), -1, is_target});
      parts.push_back({"", id, is_target});
      text.remove_prefix(at + mark.size());
    }
  }
  parts.push_back({std::string(text), -1, is_target});
}

/// The system message comes before the first question; with Mistral's third tokenizer, as in
/// mistral-common, before the last.
void ChatEncoder::add_instructions(const Dialogue& dialogue, Parts& parts) const {
  check_turns(dialogue);
  const Instructions& form = instructions_of(form_.chat_template);
  const bool has_system = dialogue.front().role == ChatRole::system;
  const size_t first = has_system ? 1 : 0;
  size_t with_system = first;
  for (size_t i = first; i < dialogue.size(); i += 2) {
    if (form_.chat_template == ChatTemplate::mistral) with_system = i;
  }
  if (!form.each_begins) parts.push_back({"", bos_, false});
  for (size_t i = first; i < dialogue.size(); ++i) {
    const ChatMessage& message = dialogue[i];
    std::string text = message.content;
    if (message.role == ChatRole::user) {
      if (has_system && i == with_system) {
        const std::string& system = dialogue.front().content;
        text = form_.chat_template == ChatTemplate::llama2
                   ? fmt::format("<<SYS>>\n{}\n<</SYS>>\n\n{}", system, text)
                   : fmt::format("{}\n\n{}", system, text);
      }
      if (form.each_begins) parts.push_back({"", bos_, false});
      add_text(form.begin, false, parts);
      parts.push_back({std::string(form.trims_questions ? trimmed(text) : text), -1, false});
      add_text(form.end, false, parts);
      continue;
    }
    const std::string_view answer = form.trims_answers ? trimmed(text) : text;
    parts.push_back({fmt::format(" {}{}", answer, form.end_of_answer), -1, message.is_target});
    parts.push_back({"", eos_, message.is_target});
  }
}

}  // namespace fp8train
