#include "data/tokenizers/unigram_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the lowest score, as in sentencepiece

/// Number of nodes of a trie of all tokens, without its root.
size_t count_nodes(const std::vector<std::string>& tokens) {
  std::vector<std::string_view> sorted(tokens.begin(), tokens.end());
  std::sort(sorted.begin(), sorted.end());
  size_t nodes = 0;
  std::string_view last;
  for (const std::string_view token : sorted) {
    const auto shared = std::mismatch(token.begin(), token.end(), last.begin(), last.end()).first;
    nodes += static_cast<size_t>(token.end() - shared);
    last = token;
  }
  return nodes;
}

}  // namespace

class UnigramModel::Memory final : public TokenModel::Scratch {
 public:
  struct Node {
    int32_t id = -1;
    double score = 0;
    size_t begin = 0;
    bool reached = false;
  };
  std::vector<Node> ends;  ///< the best way to each byte of the piece
  std::vector<size_t> path;
};

UnigramModel::UnigramModel(UnigramVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)),
      scores_(std::move(vocabulary.scores)),
      unknown_(static_cast<int32_t>(vocabulary.unknown)),
      byte_fallback_(vocabulary.byte_fallback),
      trie_(count_nodes(tokens())),
      where_(where) {
  if (vocabulary.unknown < -1 || vocabulary.unknown >= std::ssize(tokens())) {
    throw DataError(fmt::format("{}: unk_id {} is outside the vocabulary of {}", where,
                                vocabulary.unknown, tokens().size()));
  }
  bytes_.fill(-1);
  double lowest = 0;
  int32_t nodes = 0;
  for (size_t id = 0; id < tokens().size(); ++id) {
    const std::string& token = tokens()[id];
    if (!std::isfinite(scores_[id])) {
      throw DataError(fmt::format("{}: token {} has a score that is not finite", where, id));
    }
    lowest = id == 0 ? scores_[id] : std::min(lowest, scores_[id]);
    int32_t node = 0;
    for (size_t i = 0; i < token.size(); ++i) {
      const int32_t byte = static_cast<uint8_t>(token[i]);
      Merge next = trie_.find(node, byte);
      if (next.id < 0) next.id = ++nodes;
      if (i + 1 == token.size()) next.rank = static_cast<uint32_t>(id);
      trie_.set(node, byte, next);
      node = next.id;
    }
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
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    const double total = ends[begin].score + score;
    if (!ends[end].reached || total > ends[end].score) ends[end] = {id, total, begin, true};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t character = code_point_at(piece, begin).bytes;
    bool has_character = false;
    int32_t node = 0;
    for (size_t end = begin; end < piece.size(); ++end) {
      const Merge next = trie_.find(node, static_cast<uint8_t>(piece[end]));
      if (next.id < 0) break;
      node = next.id;
      if (next.rank == Merge::kNoRank) continue;
      offer(begin, end + 1, static_cast<int32_t>(next.rank), scores_[next.rank]);
      has_character = has_character || end + 1 - begin == character;
    }
    if (!has_character) {
      if (unknown_ < 0) {
        throw DataError(where_ + ": a character has no token, and there is no unk_id");
      }
      offer(begin, begin + character, unknown_, unknown_score_);
    }
    begin += character;
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
  for (size_t end = piece.size(); end > 0; end = memory.ends[end].begin) {
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
    unknown_begin = std::min(unknown_begin, node.begin);
    if (!next_is_unknown) {
      append_unknown(piece.substr(unknown_begin, end - unknown_begin), ids);
      unknown_begin = piece.size();
    }
  }
}

}  // namespace fp8train::tokenizers
