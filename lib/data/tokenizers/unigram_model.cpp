// The unigram language model (Kudo, arXiv 1804.10959) as huggingface/tokenizers,
// src/models/unigram, computes it: of all ways to write a piece as tokens the one with the highest
// sum of scores. Encoding takes time in proportion to the piece and to the tokens that are found in
// it, at each character as many as tokens have different lengths, and 16 bytes of memory for each
// byte of the piece.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/text_matcher.h"
#include "data/tokenizers/token_model.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the lowest score, as in sentencepiece

std::vector<TextMatcher::Entry> entries_of(const std::vector<std::string>& tokens) {
  std::vector<TextMatcher::Entry> entries;
  entries.reserve(tokens.size());
  for (const std::string& token : tokens) {
    entries.emplace_back(token, static_cast<int32_t>(entries.size()));
  }
  return entries;
}

/// A Unigram model. Immutable.
class UnigramModel final : public TokenModel {
 public:
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

class UnigramModel::Memory final : public TokenModel::Scratch {
 public:
  struct Node {
    double score = 0;
    int32_t id = -1;
    uint32_t length = 0;  ///< of the token that ends here; 0: none does
  };
  std::vector<Node> ends;  ///< the best way to each byte of the piece
  std::vector<size_t> path;
};

UnigramModel::UnigramModel(UnigramVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)),
      scores_(std::move(vocabulary.scores)),
      unknown_(static_cast<int32_t>(vocabulary.unknown)),
      byte_fallback_(vocabulary.byte_fallback),
      matcher_(entries_of(tokens()), where),
      where_(where) {
  if (vocabulary.unknown < -1 || vocabulary.unknown >= std::ssize(tokens())) {
    throw DataError(fmt::format("{}: unk_id {} is outside the vocabulary of {}", where,
                                vocabulary.unknown, tokens().size()));
  }
  bytes_.fill(-1);
  double lowest = 0;
  for (size_t id = 0; id < tokens().size(); ++id) {
    const std::string& token = tokens()[id];
    if (!std::isfinite(scores_[id])) {
      throw DataError(fmt::format("{}: token {} has a score that is not finite", where, id));
    }
    lowest = id == 0 ? scores_[id] : std::min(lowest, scores_[id]);
    if (const auto byte = byte_of_token(token); byte && token == byte_token(*byte)) {
      bytes_[*byte] = static_cast<int32_t>(id);
    }
  }
  unknown_score_ = lowest - kUnknownPenalty;
}

std::unique_ptr<TokenModel::Scratch> UnigramModel::make_scratch() const {
  return std::make_unique<Memory>();
}

void UnigramModel::find_best_path(std::string_view piece, Memory& memory) const {
  auto& ends = memory.ends;
  ends.assign(piece.size() + 1, {});
  const auto offer = [&](size_t end, uint32_t length, int32_t id, double score) {
    const double total = ends[end - length].score + score;
    if (ends[end].length == 0 || total > ends[end].score) ends[end] = {total, id, length};
  };
  int32_t state = TextMatcher::kStart;
  for (size_t end = 0; end < piece.size();) {
    const size_t character = code_point_at(piece, end).bytes;
    for (const size_t begin = end; end < begin + character; ++end) {
      state = matcher_.next(state, piece[end]);
    }
    bool has_character = false;
    matcher_.for_each_ending(state, [&](TextMatcher::Match found) {
      offer(end, found.length, found.value, scores_[static_cast<size_t>(found.value)]);
      has_character = has_character || found.length == character;
    });
    if (!has_character) {
      if (unknown_ < 0) {
        throw DataError(where_ + ": a character has no token, and there is no unk_id");
      }
      offer(end, static_cast<uint32_t>(character), unknown_, unknown_score_);
    }
  }
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto id_of = [&](char byte) { return bytes_[static_cast<uint8_t>(byte)]; };
  if (byte_fallback_ &&
      std::all_of(text.begin(), text.end(), [&](char byte) { return id_of(byte) >= 0; })) {
    std::transform(text.begin(), text.end(), std::back_inserter(ids), id_of);
  } else {
    ids.push_back(unknown_);
  }
}

void UnigramModel::encode(std::string_view piece, Scratch& scratch,
                          std::vector<int32_t>& ids) const {
  auto& memory = static_cast<Memory&>(scratch);
  find_best_path(piece, memory);
  memory.path.clear();
  for (size_t end = piece.size(); end > 0; end -= memory.ends[end].length) {
    memory.path.push_back(end);
  }
  size_t unknown_begin = piece.size();  // neighbouring unknown characters are one token
  for (size_t i = memory.path.size(); i-- > 0;) {
    const size_t end = memory.path[i];
    const Memory::Node& node = memory.ends[end];
    const bool next_is_unknown = i > 0 && memory.ends[memory.path[i - 1]].id == unknown_;
    if (node.id != unknown_) {
      ids.push_back(node.id);
      continue;
    }
    unknown_begin = std::min(unknown_begin, end - node.length);
    if (!next_is_unknown) {
      append_unknown(piece.substr(unknown_begin, end - unknown_begin), ids);
      unknown_begin = piece.size();
    }
  }
}

}  // namespace

std::unique_ptr<TokenModel> make_unigram_model(UnigramVocabulary vocabulary,
                                               const std::string& where) {
  return std::make_unique<UnigramModel>(std::move(vocabulary), where);
}

}  // namespace fp8train::tokenizers
