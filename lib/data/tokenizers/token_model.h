#pragma once
// The models of tokenizer.json, which turn a piece of text into ids. Immutable; the state of each
// thread is in its own Scratch.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// A model with its vocabulary.
class TokenModel {
 public:
  /// Caches and buffers, for one thread at a time.
  class Scratch {
   public:
    virtual ~Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   protected:
    Scratch() = default;
  };

  virtual ~TokenModel() = default;
  TokenModel(const TokenModel&) = delete;
  TokenModel& operator=(const TokenModel&) = delete;

  /// Makes the state of one thread.
  virtual std::unique_ptr<Scratch> make_scratch() const = 0;

  /// Appends the ids of `piece`, which is not empty, to `ids`. `scratch` comes from make_scratch().
  /// Throws DataError for a character that the model cannot write.
  virtual void encode(std::string_view piece, Scratch& scratch,
                      std::vector<int32_t>& ids) const = 0;

  /// Returns the texts of the tokens by id, as the file spells them; holes in the ids are empty.
  const std::vector<std::string>& tokens() const { return tokens_; }

 protected:
  explicit TokenModel(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

 private:
  std::vector<std::string> tokens_;
};

/// Reads the field "model" of a tokenizer.json. `byte_level`: pieces are bytes, and tokens are
/// spelled in GPT-2's byte-level alphabet. Throws DataError for a kind that is not supported or a
/// table that contradicts itself.
std::unique_ptr<TokenModel> read_token_model(const JsonPart& part, bool byte_level);

}  // namespace fp8train::tokenizers
