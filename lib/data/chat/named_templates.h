#pragma once
// Chat templates that have a name, for tokenizers without one of their own: those of published
// models in our words, which give the same ids.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// A chat template with a name.
struct NamedTemplate {
  std::string_view name;
  std::string jinja;
  std::vector<std::string_view> tokens;  ///< that a tokenizer must have for it
};

/// Returns the templates:
///
///   llama3      Meta-Llama-3-Instruct
///   llama3.1    Llama-3.1-Instruct: a system message with dates, of which today's is 26 Jul 2024
///   llama2      Llama-2-chat: [INST], <<SYS>>
///   mistral     Mistral-7B-Instruct-v0.3, with the system message before the last question
///   mistral-v1  Mistral-7B-Instruct-v0.1 and v0.2, as their repositories have it since 2024
///   qwen        Qwen2.5-Instruct: ChatML with a system message of its own
///   qwen3       Qwen3: ChatML; thoughts come before the last answer alone
///   chatml      ChatML
const std::vector<NamedTemplate>& named_templates();

/// Returns "llama3, llama3.1, ...".
std::string chat_template_names();

/// Returns what is wrong with a value of data.chat_template that is neither auto nor a name nor the
/// path of a file ".jinja"; nothing for others.
std::optional<std::string> chat_template_problem(const std::string& setting);

}  // namespace fp8train
