#include "data/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/log.h"
#include "data/chat/named_templates.h"

namespace fp8train {
namespace {

constexpr size_t kMaxBytes = 1U << 20;

const TokenizerFile* file_named(const std::vector<TokenizerFile>& files, std::string_view name) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const TokenizerFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

nlohmann::json config_of(const std::vector<TokenizerFile>& files) {
  const TokenizerFile* file = file_named(files, "tokenizer_config.json");
  if (file == nullptr) return nlohmann::json::object();
  nlohmann::json config = nlohmann::json::parse(file->text, nullptr, false);
  return config.is_object() ? std::move(config) : nlohmann::json::object();
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// The template in tokenizer_config.json; empty where there is none.
std::string template_in(const nlohmann::json& config) {
  const auto value = config.find("chat_template");
  if (value == config.end() || !value->is_array()) return text_in(config, "chat_template");
  for (const nlohmann::json& entry : *value) {
    if (entry.is_object() && text_in(entry, "name") == "default") return text_in(entry, "template");
  }
  return "";
}

jinja::Template from_folder(const Tokenizer& tokenizer, std::string_view option) {
  const std::string text = own_chat_template(tokenizer);
  if (!text.empty()) {
    const bool is_file = file_named(tokenizer.files(), kChatTemplateFile) != nullptr;
    return {text, is_file ? kChatTemplateFile : "tokenizer_config.json: chat_template"};
  }
  throw ConfigError(fmt::format(
      "{}: auto, but the tokenizer's folder has no chat template; name one ({}), or the "
      "path of a .jinja file",
      option, chat_template_names()));
}

jinja::Template named(const NamedTemplate& found, const SpecialTokens& tokens,
                      std::string_view option) {
  for (const std::string_view token : found.tokens) {
    if (tokens.id_of(token) >= 0) continue;
    throw ConfigError(
        fmt::format("{}: {} needs the token '{}', which the tokenizer does not have; name another "
                    "template, or use the tokenizer of a chat model",
                    option, found.name, token));
  }
  return {found.jinja, std::string(found.name)};
}

const NamedTemplate* find_named(const std::string& setting) {
  const auto& all = named_templates();
  const auto found = std::ranges::find(all, setting, &NamedTemplate::name);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::string own_chat_template(const Tokenizer& tokenizer) {
  const std::vector<TokenizerFile> files = tokenizer.files();
  const TokenizerFile* file = file_named(files, kChatTemplateFile);
  return file != nullptr ? file->text : template_in(config_of(files));
}

void add_chat_template(Tokenizer& tokenizer, const std::string& setting) {
  if (setting == "auto") return;
  const NamedTemplate* found = find_named(setting);
  tokenizer.set_file(
      {kChatTemplateFile, found != nullptr ? found->jinja : read_text_file(setting, kMaxBytes)});
}

jinja::Template find_chat_template(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                   const std::string& setting, std::string_view option) {
  if (const auto problem = chat_template_problem(setting)) {
    throw ConfigError(fmt::format("{}: {}", option, *problem));
  }
  if (const NamedTemplate* found = find_named(setting)) return named(*found, tokens, option);
  jinja::Template chat_template =
      setting == "auto" ? from_folder(tokenizer, option)
                        : jinja::Template(read_text_file(setting, kMaxBytes), setting);
  if (chat_template.uses("strftime_now")) {
    log_warning(
        fmt::format("the chat template asks for today's date, with which the same dialogue would "
                    "have other ids "
                    "tomorrow; it gets {}",
                    jinja::kToday));
  }
  return chat_template;
}

jinja::Variables token_variables(const Tokenizer& tokenizer, const SpecialTokens& tokens) {
  jinja::Variables variables;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) variables.emplace_back(name, jinja::Value::text(text));
  };
  add("bos_token", tokens.bos());
  add("eos_token", tokens.eos());
  const nlohmann::json config = config_of(tokenizer.files());
  for (const char* name : {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto value = config.find(name);
    if (value == config.end()) continue;
    add(name, value->is_object() ? text_in(*value, "content") : text_in(config, name));
  }
  return variables;
}

}  // namespace fp8train
