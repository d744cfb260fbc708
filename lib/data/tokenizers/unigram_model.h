#pragma once
// The unigram language model (Kudo, arXiv 1804.10959) as huggingface/tokenizers,
// src/models/unigram, computes it: of all ways to write a piece as tokens the one with the highest
// sum of scores. Encoding takes time in proportion to the piece and to the tokens that are found in
// it, at each character as many as tokens have different lengths, and 16 bytes of memory for each
// byte of the piece.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/text_matcher.h"
#include "data/tokenizers/token_model.h"

namespace fp8train::tokenizers {

/// The tables of a Unigram model.
struct UnigramVocabulary {
  std::vector<std::string> tokens;  ///< by id
  std::vector<double> scores;       ///< logarithms of probabilities
  int64_t unknown = -1;             ///< id of unknown characters; -1: encode() refuses them
  bool byte_fallback = false;       ///< unknown characters become <0x00> to <0xFF>
};

/// A Unigram model. Immutable.
class UnigramModel final : public TokenModel {
 public:
  /// Throws DataError, which begins with `where`, for an unknown id outside the vocabulary or a
  /// score that is not finite, and as TextMatcher does.
  UnigramModel(UnigramVocabulary vocabulary, const std::string& where);

  std::unique_ptr<Scratch> make_scratch() const override;
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  class Memory;
  void find_best_path(std::string_view piece, Memory& memory) const;
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<double> scores_;
  int32_t unknown_;
  bool byte_fallback_;
  double unknown_score_ = 0;
  std::array<int32_t, 256> bytes_ = {};
  TextMatcher matcher_;
  std::string where_;
};

}  // namespace fp8train::tokenizers
