#include "data/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/names.h"
#include "data/tokenizers/unicode.h"

namespace fp8train {
namespace {

constexpr std::string_view kQwenSystem =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

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

/// Prefers chat_template.jinja to tokenizer_config.json, as transformers does.
ChatForm find_form(const Tokenizer& tokenizer, std::string_view option) {
  const std::vector<TokenizerFile> files = tokenizer.files();
  for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
    for (const TokenizerFile& file : files) {
      const std::string jinja = file.name == name ? template_in(file) : "";
      if (!jinja.empty()) return recognize_chat_template(jinja, file.name, option);
    }
  }
  throw ConfigError(
      fmt::format("{}: auto, but the tokenizer's folder has no chat template; name one ({})",
                  option, chat_template_names()));
}

/// Collects ids; texts that follow each other are encoded together. White space that belongs to a
/// token is left out.
class IdWriter {
 public:
  IdWriter(const Tokenizer& tokenizer, ChatEncoder::Encoded& out)
      : tokenizer_(tokenizer), out_(out) {}

  void add(const ChatPart& part) {
    if (part.id >= 0) {
      add_token(part);
      return;
    }
    check(part.is_target || answer_.empty(), "a token lies between an answer and what follows");
    std::string_view text = part.text;
    if (drops_spaces_) text.remove_prefix(tokenizers::spaces_at_start(text));
    drops_spaces_ = drops_spaces_ && text.empty();
    (part.is_target ? answer_ : before_) += text;
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
  void add_token(const ChatPart& part) {
    const TokenStrips strips = tokenizer_.strips(part.id);
    if (strips.before) {
      answer_.resize(tokenizers::without_spaces_at_end(answer_));
      if (answer_.empty()) before_.resize(tokenizers::without_spaces_at_end(before_));
    }
    flush();
    out_.ids.push_back(part.id);
    out_.is_target.push_back(part.is_target);
    drops_spaces_ = strips.after;
  }

  const Tokenizer& tokenizer_;
  ChatEncoder::Encoded& out_;
  std::string before_, answer_;
  bool drops_spaces_ = false;  ///< behind a token that takes them
};

}  // namespace

std::string_view name_of(ChatTemplate chat_template) {
  return name_in(kChatTemplates, chat_template);
}

std::string chat_template_names() {
  std::string names;
  for (const auto& [value, name] : kChatTemplates) {
    if (value == ChatTemplate::automatic) continue;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

ChatTemplate chat_template_named(std::string_view name, std::string_view option) {
  if (const auto value = value_in(kChatTemplates, name)) return *value;
  throw ConfigError(fmt::format("{}: Unknown chat template '{}' (expected auto, {})", option, name,
                                chat_template_names()));
}

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template,
                         std::string_view option)
    : tokenizer_(tokenizer), option_(option), bos_(tokenizer.bos_id()), eos_(tokenizer.eos_id()) {
  form_ = chat_template == ChatTemplate::automatic ? find_form(tokenizer, option)
                                                   : ChatForm{chat_template, ""};
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
    case ChatTemplate::qwen3:
    case ChatTemplate::chatml:
      begin_ = require("<|im_start|>");
      end_ = require("<|im_end|>");
      break;
    case ChatTemplate::llama2:
    case ChatTemplate::mistral:
    case ChatTemplate::mistral1:
      if (bos_ < 0) bos_ = require("<s>");
      if (eos_ < 0) eos_ = require("</s>");
      break;
    case ChatTemplate::automatic:
      break;  // find_form() names another
  }
}

int32_t ChatEncoder::require(std::string_view token) const {
  const int32_t id = tokenizer_.token_id(token);
  if (id < 0) {
    throw ConfigError(
        fmt::format("{}: {} needs the token '{}', which the tokenizer does not have; name another "
                    "template, or use the tokenizer of a chat model",
                    option_, name_of(form_.chat_template), token));
  }
  return id;
}

ChatEncoder::Encoded ChatEncoder::ids_of(const Parts& parts) const {
  Encoded encoded;
  IdWriter writer(tokenizer_, encoded);
  for (const ChatPart& part : parts) {
    writer.add(part);
  }
  writer.flush();
  return encoded;
}

ChatEncoder::Encoded ChatEncoder::encode(const Dialogue& dialogue) const {
  return ids_of(render(dialogue));
}

std::vector<int32_t> ChatEncoder::prompt(const Dialogue& dialogue, bool thinks) const {
  Parts parts = render(dialogue);
  if (begin_ >= 0) add_header(ChatRole::assistant, parts);
  if (!thinks) {
    if (form_.chat_template != ChatTemplate::qwen3) {
      throw ConfigError(fmt::format("the chat template {} has no thinking to leave out (qwen3 has)",
                                    name_of(form_.chat_template)));
    }
    add_thoughts("", false, parts);
  }
  return ids_of(parts).ids;
}

}  // namespace fp8train
