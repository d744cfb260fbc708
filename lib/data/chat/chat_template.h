#pragma once
// Where the text of a chat template comes from.

#include <string>
#include <string_view>

#include "data/chat/jinja/template.h"
#include "data/chat/special_tokens.h"
#include "data/tokenizer.h"

namespace fp8train {

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
