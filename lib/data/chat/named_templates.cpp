#include "data/chat/named_templates.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/utf8.h"

namespace fp8train {
namespace {

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
