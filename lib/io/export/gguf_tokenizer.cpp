#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "data/tokenizers/registry.h"
#include "data/tokenizers/token_table.h"
#include "io/export/export_gguf.h"

namespace fp8train {
namespace {

ConfigValue::List ints_of(const std::vector<TokenType>& types) {
  ConfigValue::List list;
  for (const TokenType type : types) {
    list.emplace_back(static_cast<int64_t>(type));
  }
  return list;
}

ConfigValue::List texts_of(const std::vector<std::string>& texts) {
  return {texts.begin(), texts.end()};
}

/// Tokens of the model that the tokenizer lacks are unused.
void extend(TokenTable& table, int64_t vocab_size) {
  while (static_cast<int64_t>(table.tokens.size()) < vocab_size) {
    table.tokens.push_back(fmt::format("[PAD{}]", table.tokens.size()));
    table.types.push_back(TokenType::unused);
    if (table.kind == TokenTableKind::scored) {
      table.scores.push_back(-1e9F);
    }
  }
}

void add_table(const TokenTable& table, ConfigObject& metadata) {
  const bool scored = table.kind == TokenTableKind::scored;
  set(metadata, "tokenizer.ggml.model", scored ? "llama" : "gpt2");
  set(metadata, "tokenizer.ggml.pre", table.pre.empty() ? "default" : table.pre);
  set(metadata, "tokenizer.ggml.tokens", texts_of(table.tokens));
  set(metadata, "tokenizer.ggml.token_type", ints_of(table.types));
  if (scored) {
    ConfigValue::List scores;
    for (const float score : table.scores) {
      scores.emplace_back(static_cast<double>(score));
    }
    set(metadata, "tokenizer.ggml.scores", std::move(scores));
  } else {
    set(metadata, "tokenizer.ggml.merges", texts_of(table.merges));
  }
  set(metadata, "tokenizer.ggml.add_space_prefix", table.adds_space);
  if (table.unknown >= 0) {
    set(metadata, "tokenizer.ggml.unknown_token_id", int64_t{table.unknown});
  }
}

void add_ends(const ModelSource& model, const Tokenizer& tokenizer, ConfigObject& metadata) {
  const ModelConfig& config = model.config.model;
  const int64_t bos = config.bos_token_id >= 0 ? config.bos_token_id : tokenizer.bos_id();
  const int64_t eos = config.eos_token_id >= 0 ? config.eos_token_id : tokenizer.eos_id();
  if (bos >= 0) {
    set(metadata, "tokenizer.ggml.bos_token_id", bos);
  }
  if (eos >= 0) {
    set(metadata, "tokenizer.ggml.eos_token_id", eos);
  }
  set(metadata, "tokenizer.ggml.add_bos_token", !tokenizer.frame().before_prompt.empty());
  set(metadata, "tokenizer.ggml.add_eos_token", false);
}

}  // namespace

void add_gguf_tokenizer(const ModelSource& model, ConfigObject& metadata,
                        std::vector<std::string>& notes) {
  const std::string folder = model.folder.string();
  if (!tokenizers::has_tokenizer(model.folder)) {
    notes.push_back(folder + " has no tokenizer: the file has none, and takes ids only");
    set(metadata, "tokenizer.ggml.model", "none");
    return;
  }
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(model.folder);
  TokenTable table;
  try {
    table = token_table(*tokenizer);
  } catch (const DataError& error) {
    notes.push_back(
        fmt::format("{}; so the file has no tokenizer and takes ids only", error.what()));
    set(metadata, "tokenizer.ggml.model", "none");
    return;
  }
  const int64_t vocabulary = model.config.model.vocab_size;
  if (static_cast<int64_t>(table.tokens.size()) > vocabulary) {
    throw CheckpointError(fmt::format("{}: the tokenizer has {} tokens, but the model {}", folder,
                                      table.tokens.size(), vocabulary));
  }
  if (table.pre.empty()) {
    notes.emplace_back(
        "llama.cpp has no name for how this tokenizer splits texts (tokenizer.ggml.pre is "
        "'default'): it may give other ids");
  }
  for (const std::string& difference : table.differences) {
    notes.push_back(fmt::format("llama.cpp {}: such texts get other ids there", difference));
  }
  extend(table, vocabulary);
  add_table(table, metadata);
  add_ends(model, *tokenizer, metadata);
  if (std::string text = own_chat_template(*tokenizer); !text.empty()) {
    set(metadata, "tokenizer.chat_template", std::move(text));
  }
}

}  // namespace fp8train
