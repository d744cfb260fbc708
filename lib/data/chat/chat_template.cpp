#include "data/chat/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_reader.h"
#include "base/key_error.h"
#include "base/log.h"
#include "data/utf8.h"

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
  return json_object_or_empty(file == nullptr ? "" : file->text);
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
  throw KeyError(std::string(option),
                 fmt::format(": auto, but the tokenizer's folder has no chat template; name one "
                             "({}), or the path of a .jinja file",
                             chat_template_names()));
}

jinja::Template named(const NamedTemplate& found, const SpecialTokens& tokens,
                      std::string_view option) {
  for (const std::string_view token : found.tokens) {
    if (tokens.id_of(token) >= 0) continue;
    throw KeyError(
        std::string(option),
        fmt::format(": {} needs the token '{}', which the tokenizer does not have; name another "
                    "template, or use the tokenizer of a chat model",
                    found.name, token));
  }
  return {found.jinja, std::string(found.name)};
}

const NamedTemplate* find_named(const std::string& setting) {
  const auto& all = named_templates();
  const auto found = std::ranges::find(all, setting, &NamedTemplate::name);
  return found == all.end() ? nullptr : &*found;
}

constexpr std::string_view kBegin = "{{- bos_token }}";

constexpr std::string_view kHeaders = R"({%- for m in messages %}
  {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

constexpr std::string_view kLlama31System = R"({%- if messages[0].role == 'system' %}
  {%- set system = messages[0].content | trim %}
  {%- set messages = messages[1:] %}
{%- endif %}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' }}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' }}
{{- system | default('') + '<|eot_id|>' }})";

constexpr std::string_view kChatml = R"({%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %})";

constexpr std::string_view kQwenSystem = R"({%- if messages[0].role != 'system' %}
  {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. ' }}
  {{- 'You are a helpful assistant.<|im_end|>\n' }}
{%- endif %})";

// Thoughts are shown behind the last question alone, and in the last answer even where it is
// nothing. A tool's response is no question.
constexpr std::string_view kQwen3 =
    R"({%- set ns = namespace(last_question=messages | length - 1) %}
{%- for m in messages %}
  {%- set is_response = m.content.startswith('<tool_response>') and
                        m.content.endswith('</tool_response>') %}
  {%- if m.role == 'user' and not is_response %}
    {%- set ns.last_question = loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}
  {{- '<|im_start|>' + m.role + '\n' }}
  {%- set content = m.content %}
  {%- if m.role == 'assistant' %}
    {%- set thought = m.reasoning_content | default('') %}
    {%- if m.reasoning_content is not defined and '</think>' in content %}
      {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}
      {%- set thought = thought.lstrip('\n') %}
      {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.last_question and (loop.last or thought) %}
      {{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}
      {%- set content = content.lstrip('\n') %}
    {%- endif %}
  {%- endif %}
  {{- content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %})";

constexpr std::string_view kTurns = R"({%- if messages and messages[0].role == 'system' %}
  {%- set system = messages[0].content %}
  {%- set messages = messages[1:] %}
{%- endif %}
{%- for m in messages %}
  {%- if m.role != ['user', 'assistant'][loop.index0 % 2] %}
    {{- raise_exception('it takes user and assistant alternately, with a system message at most '
                        'before them') }}
  {%- endif %}
{%- endfor %})";

constexpr std::string_view kLlama2 = R"(
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {%- set first = loop.first and system is defined %}
    {%- set question = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + m.content if first else m.content %}
    {{- bos_token + '[INST] ' + question.strip() + ' [/INST]' }}
  {%- else %}
    {{- ' ' + m.content.strip() + ' ' + eos_token }}
  {%- endif %}
{%- endfor %})";

constexpr std::string_view kMistral = R"({{- bos_token }}
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {%- set last = loop.last or loop.index0 == loop.length - 2 %}
    {{- '[INST] ' + (system + '\n\n' if last and system is defined else '') + m.content }}
    {{- '[/INST]' }}
  {%- else %}
    {{- ' ' + m.content | trim + eos_token }}
  {%- endif %}
{%- endfor %})";

constexpr std::string_view kMistral1 = R"({{- bos_token }}
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {{- ' [INST] ' + (system + '\n\n' if loop.first and system is defined else '') + m.content }}
    {{- ' [/INST]' }}
  {%- else %}
    {{- ' ' + m.content + eos_token }}
  {%- endif %}
{%- endfor %})";

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
    throw KeyError(std::string(option), ": " + *problem);
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

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer) {
  for (auto& [text, id, is_special] : tokenizer.added_tokens()) {
    const bool is_marked = text.size() > 2 && text.starts_with('<') && text.ends_with('>');
    if (!text.empty() && (is_special || is_marked)) ids_.emplace(std::move(text), id);
  }
  bos_ = text_of(tokenizer.bos_id(), "<s>");
  eos_ = text_of(tokenizer.eos_id(), "</s>");
  for (const auto& entry : ids_) lengths_.insert(entry.first.size());
}

std::string SpecialTokens::text_of(int32_t id, const char* otherwise) {
  if (id < 0) return ids_.contains(otherwise) ? otherwise : "";
  const auto found =
      std::find_if(ids_.begin(), ids_.end(), [&](const auto& entry) { return entry.second == id; });
  if (found != ids_.end()) return found->first;
  ids_.emplace(otherwise, id);
  return otherwise;
}

int32_t SpecialTokens::id_of(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<FoundToken> SpecialTokens::in(std::string_view text) const {
  std::vector<FoundToken> found;
  for (size_t at = 0; at < text.size();) {
    size_t next = at + 1;
    for (const size_t length : lengths_) {
      if (length > text.size() - at) continue;
      const int32_t id = id_of(text.substr(at, length));
      if (id < 0) continue;
      found.push_back({at, at + length, id});
      next = at + length;
      break;
    }
    at = next;
  }
  return found;
}

const std::vector<NamedTemplate>& named_templates() {
  const auto joined = [](std::string_view first, std::string_view rest) {
    return std::string(first) + std::string(rest);
  };
  static const std::vector<std::string_view> headers = {"<|start_header_id|>", "<|end_header_id|>",
                                                        "<|eot_id|>"};
  static const std::vector<std::string_view> chatml = {"<|im_start|>", "<|im_end|>"};
  static const std::vector<NamedTemplate> all = {
      {"llama3", joined(kBegin, kHeaders), headers},
      {"llama3.1", joined(kLlama31System, kHeaders), headers},
      {"llama2", joined(kTurns, kLlama2), {}},
      {"mistral", joined(kTurns, kMistral), {}},
      {"mistral-v1", joined(kTurns, kMistral1), {}},
      {"qwen", joined(kQwenSystem, kChatml), chatml},
      {"qwen3", std::string(kQwen3), chatml},
      {"chatml", std::string(kChatml), chatml},
  };
  return all;
}

std::string chat_template_names() {
  std::string names;
  for (const NamedTemplate& each : named_templates()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
  }
  return names;
}

std::optional<std::string> chat_template_problem(const std::string& setting) {
  const auto& all = named_templates();
  const bool is_known =
      setting == "auto" || setting.ends_with(".jinja") ||
      std::any_of(all.begin(), all.end(), [&](const auto& each) { return each.name == setting; });
  if (is_known) return std::nullopt;
  return fmt::format("unknown chat template '{}' (expected auto, {}, or the path of a .jinja file)",
                     printable(setting), chat_template_names());
}

}  // namespace fp8train
