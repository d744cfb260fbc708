#pragma once
// Byte-pair encoding (Sennrich et al., arXiv 1508.07909) as huggingface/tokenizers, src/models/bpe,
// computes it: of all neighbours the pair of lowest rank merges first, the leftmost of equals.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/tokenizers/pair_table.h"
#include "data/tokenizers/token_model.h"

namespace fp8train::tokenizers {

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

/// A BPE model. Immutable.
class BpeModel final : public TokenModel {
 public:
  /// Throws DataError, which begins with `where`, if a merge names a token that the vocabulary does
  /// not have, `unknown` is none of its tokens, or no token of a byte-level one is a single byte.
  BpeModel(BpeVocabulary vocabulary, const std::string& where);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  class Memory;
  using Texts = std::unordered_map<std::string_view, int32_t>;

  void read_merges(const std::vector<std::pair<std::string, std::string>>& merges, const Texts& ids,
                   const std::string& where);
  void read_characters(const Texts& ids, const std::string& where);
  int32_t id_of(char32_t character) const;
  void encode_word(std::string_view word, Memory& memory, std::vector<int32_t>& ids) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void append_characters(std::string_view word, std::vector<int32_t>& symbols) const;
  void merge_few(std::vector<int32_t>& symbols, std::vector<uint32_t>& ranks) const;
  void merge_many(std::vector<int32_t>& symbols) const;

  bool byte_level_;
  bool byte_fallback_;
  bool fuse_unknown_;
  bool ignore_merges_;
  bool cuts_at_mark_ = false;  ///< no token has U+2581 behind another character
  int32_t unknown_ = -1;
  std::array<int32_t, 256> bytes_ = {};  ///< ids of bytes, or of <0x00> to <0xFF>; -1: none
  std::vector<int32_t> low_characters_;  ///< ids of characters below U+10000; -1: none
  std::unordered_map<char32_t, int32_t> high_characters_;
  PairTable merges_;
  std::vector<std::string> bytes_of_tokens_;  ///< for ignore_merges
  std::unordered_map<std::string_view, int32_t> whole_;
};

}  // namespace fp8train::tokenizers
