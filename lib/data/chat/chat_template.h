#pragma once
// Where the text of a chat template comes from, and the special tokens that it writes.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/jinja/template.h"
#include "data/tokenizer.h"

namespace fp8train {

/// A special token in a text.
struct FoundToken {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

/// Finds special tokens in texts: those that the tokenizer calls so, and other added tokens of the
/// form <...>, which are as special to a chat template. Immutable.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Tokenizer& tokenizer);

  /// Returns those in `text`, in order; at each position the longest.
  std::vector<FoundToken> in(std::string_view text) const;
  /// Returns the id of the token with this text, or -1.
  int32_t id_of(std::string_view text) const;
  /// The texts of the tokens that begin and end a sequence; empty where there are none. Tokens that
  /// have no text in the tokenizer are written as <s> and </s>.
  const std::string& bos() const { return bos_; }
  const std::string& eos() const { return eos_; }

 private:
  std::string text_of(int32_t id, const char* otherwise);

  std::map<std::string, int32_t, std::less<>> ids_;
  std::set<size_t, std::greater<>> lengths_;
  std::string bos_, eos_;
};

/// A chat template with a name, for tokenizers without one of their own: that of a published model
/// in our words, which gives the same ids.
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

inline constexpr const char* kChatTemplateFile = "chat_template.jinja";

/// Returns the text of the template in the tokenizer's files; empty where there is none. Prefers
/// chat_template.jinja to tokenizer_config.json, as transformers does; of several templates there
/// it takes "default".
std::string own_chat_template(const Tokenizer& tokenizer);

/// Adds to the tokenizer's files the template that `setting` names, with which a model is trained.
/// Throws DataError where a file cannot be read.
void add_chat_template(Tokenizer& tokenizer, const std::string& setting);

/// Returns the template that `setting` names, as ChatEncoder takes it. Throws ConfigError, which
/// names `option`.
jinja::Template find_chat_template(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                   const std::string& setting, std::string_view option);

/// Returns the variables of templates that a tokenizer gives: bos_token, eos_token and the others
/// of tokenizer_config.json, by the names that transformers has for them.
jinja::Variables token_variables(const Tokenizer& tokenizer, const SpecialTokens& tokens);

}  // namespace fp8train
