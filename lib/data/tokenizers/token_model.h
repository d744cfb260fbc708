#pragma once
// The models of tokenizer.json, which turn a piece of text into ids. Immutable; the state of each
// thread is in its own Scratch.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/not_copied.h"
#include "data/tokenizers/json_part.h"

namespace fp8train::tokenizers {

/// A model with its vocabulary.
class TokenModel : NotCopied {
 public:
  /// Caches and buffers, for one thread at a time.
  class Scratch : NotCopied {
   public:
    virtual ~Scratch() = default;
  };

  virtual ~TokenModel() = default;

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

/// Returns the ids of tokens by their texts, which are those of `tokens`; holes are left out.
std::unordered_map<std::string_view, int32_t> ids_of(const std::vector<std::string>& tokens);

/// Returns the id of the token of unknown characters. Throws DataError, which begins with `where`,
/// if there is none.
int32_t unknown_id(const std::unordered_map<std::string_view, int32_t>& ids,
                   const std::string& unknown, const std::string& where);

/// The tables and flags of a BPE model.
struct BpeVocabulary {
  std::vector<std::string> tokens;  ///< by id, as the file spells them; holes are empty
  std::vector<std::pair<std::string, std::string>> merges;  ///< in the order of their ranks
  std::string unknown;         ///< the token of unknown characters; empty: they are left out
  bool byte_level = false;     ///< pieces are bytes, tokens are spelled in the byte alphabet
  bool byte_fallback = false;  ///< characters without a token become <0x00> to <0xFF>
  bool fuse_unknown = false;   ///< neighbouring unknown characters are one token
  bool ignore_merges = false;  ///< a piece that is a token stays whole
};

/// Makes a model of byte-pair encoding. Throws DataError, which begins with `where`, if a merge
/// names a token that the vocabulary does not have, `unknown` is none of its tokens, or no token of
/// a byte-level one is a single byte.
std::unique_ptr<TokenModel> make_bpe_model(BpeVocabulary vocabulary, const std::string& where);

/// The tables of a Unigram model.
struct UnigramVocabulary {
  std::vector<std::string> tokens;  ///< by id
  std::vector<double> scores;       ///< logarithms of probabilities
  int64_t unknown = -1;             ///< id of unknown characters; -1: encode() refuses them
  bool byte_fallback = false;       ///< unknown characters become <0x00> to <0xFF>
};

/// Makes a unigram language model. Throws DataError, which begins with `where`, for an unknown id
/// outside the vocabulary or a score that is not finite, and as TextMatcher does.
std::unique_ptr<TokenModel> make_unigram_model(UnigramVocabulary vocabulary,
                                               const std::string& where);

/// Reads the field "model" of a tokenizer.json. `byte_level`: pieces are bytes, and tokens are
/// spelled in GPT-2's byte-level alphabet. Throws DataError for a kind that is not supported or a
/// table that contradicts itself.
std::unique_ptr<TokenModel> read_token_model(const JsonPart& part, bool byte_level);

}  // namespace fp8train::tokenizers
