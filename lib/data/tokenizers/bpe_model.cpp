// Byte-pair encoding (Sennrich et al., arXiv 1508.07909) as huggingface/tokenizers, src/models/bpe,
// computes it: of all neighbours the pair of lowest rank merges first, the leftmost of equals.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/tokenizers/byte_alphabet.h"
#include "data/tokenizers/pair_table.h"
#include "data/tokenizers/piece_cache.h"
#include "data/tokenizers/pre_tokenizers.h"
#include "data/tokenizers/token_model.h"
#include "data/tokenizers/unicode.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

/// Merges neighbouring tokens of `ids` in place, the best pair first, the leftmost of equals, until
/// none is left: in O(n log n) by a heap over a linked list, with some 45 bytes for each token.
/// Throws DataError for 2^32 ids.
void merge_pairs(std::vector<int32_t>& ids, const PairTable& merges) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  constexpr int32_t kMergedAway = -1;
  struct Candidate {
    Merge merge;
    uint32_t left;
    // Top of the heap: the lowest rank, then the leftmost position.
    bool operator<(const Candidate& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
    }
  };
  if (ids.size() >= kNone) throw DataError("a piece of text of more than 2^32 tokens");
  const auto count = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  const auto merge_at = [&](uint32_t left) -> Merge {
    if (left == kNone || ids[left] == kMergedAway || next[left] == kNone) return {};
    return merges.find(ids[left], ids[next[left]]);
  };
  std::vector<Candidate> first;
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const Merge merge = merge_at(i); merge.rank != Merge::kNoRank) first.push_back({merge, i});
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(first));
  while (!heap.empty()) {
    const auto [merge, left] = heap.top();
    heap.pop();
    const Merge now = merge_at(left);
    if (now.rank != merge.rank || now.id != merge.id) continue;  // a neighbour has merged
    const uint32_t right = next[left];
    ids[left] = merge.id;
    ids[right] = kMergedAway;
    next[left] = next[right];
    if (next[left] != kNone) previous[next[left]] = left;
    for (const uint32_t changed : {previous[left], left}) {
      const Merge found = merge_at(changed);
      if (found.rank != Merge::kNoRank) heap.push({found, changed});
    }
  }
  std::erase(ids, kMergedAway);
}

constexpr size_t kFewSymbols = 64;  // up to here the next merge is searched, above it is in a heap
constexpr char32_t kLowCharacters = 0x10000;
constexpr size_t kShortSlotsLog2 = 16;
constexpr size_t kLongSlotsLog2 = 14;

using ShortPieces = PieceTable<2, 3>;
using LongPieces = PieceTable<6, 7>;

/// Whether the mark follows another character.
bool has_inner_mark(std::string_view token) {
  for (size_t at = token.find(kSpaceMark, 1); at != std::string_view::npos;
       at = token.find(kSpaceMark, at + 1)) {
    const bool behind_mark = at >= kSpaceMark.size() &&
                             token.substr(at - kSpaceMark.size(), kSpaceMark.size()) == kSpaceMark;
    if (!behind_mark) return true;
  }
  return false;
}

/// A BPE model. Immutable.
class BpeModel final : public TokenModel {
 public:
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

class BpeModel::Memory final : public TokenModel::Scratch {
 public:
  ShortPieces short_pieces{kShortSlotsLog2};
  LongPieces long_pieces{kLongSlotsLog2};
  std::vector<int32_t> symbols;
  std::vector<uint32_t> ranks;
};

BpeModel::BpeModel(BpeVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)),
      byte_level_(vocabulary.byte_level),
      byte_fallback_(vocabulary.byte_fallback),
      fuse_unknown_(vocabulary.fuse_unknown),
      ignore_merges_(vocabulary.ignore_merges),
      merges_(vocabulary.merges.size()) {
  const Texts ids = ids_of(tokens());
  if (!vocabulary.unknown.empty()) unknown_ = unknown_id(ids, vocabulary.unknown, where);
  read_merges(vocabulary.merges, ids, where);
  read_characters(ids, where);
  if (ignore_merges_) {
    bytes_of_tokens_.resize(tokens().size());
    for (size_t id = 0; id < tokens().size(); ++id) {
      auto bytes = byte_level_ ? unspelled(tokens()[id]) : tokens()[id];
      if (!bytes || bytes->empty()) continue;
      bytes_of_tokens_[id] = std::move(*bytes);
      whole_.emplace(bytes_of_tokens_[id], static_cast<int32_t>(id));
    }
  }
}

void BpeModel::read_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                           const Texts& ids, const std::string& where) {
  cuts_at_mark_ = !byte_level_ && !ignore_merges_;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const std::string merged = left + right;
    std::array<int32_t, 3> found = {};
    const std::array<const std::string*, 3> texts = {&left, &right, &merged};
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto id = ids.find(*texts[i]);
      if (id == ids.end()) {
        throw DataError(fmt::format("{}: merge {} of '{}' and '{}': '{}' is not in the vocabulary",
                                    where, rank, printable(left), printable(right),
                                    printable(*texts[i])));
      }
      found[i] = id->second;
    }
    merges_.set(found[0], found[1], {static_cast<uint32_t>(rank), found[2]});
    cuts_at_mark_ = cuts_at_mark_ && !has_inner_mark(merged);
  }
}

void BpeModel::read_characters(const Texts& ids, const std::string& where) {
  for (size_t byte = 0; byte < bytes_.size(); ++byte) {
    std::string text = byte_token(static_cast<uint8_t>(byte));
    if (byte_level_) {
      text.clear();
      append_utf8(text, byte_character(static_cast<uint8_t>(byte)));
    }
    const auto found = ids.find(text);
    bytes_[byte] = found == ids.end() ? -1 : found->second;
  }
  if (byte_level_) {
    if (std::all_of(bytes_.begin(), bytes_.end(), [](int32_t id) { return id < 0; })) {
      throw DataError(where + ": no token is a single byte of the byte-level alphabet");
    }
    return;
  }
  low_characters_.assign(kLowCharacters, -1);
  for (const auto& [text, id] : ids) {
    const CodePoint c = code_point_at(text, 0);
    if (c.bytes != text.size()) continue;
    if (c.value < kLowCharacters) {
      low_characters_[c.value] = id;
    } else {
      high_characters_[c.value] = id;
    }
  }
  cuts_at_mark_ = cuts_at_mark_ && id_of(code_point_at(kSpaceMark, 0).value) >= 0;
}

int32_t BpeModel::id_of(char32_t character) const {
  if (character < kLowCharacters) return low_characters_[character];
  const auto found = high_characters_.find(character);
  return found == high_characters_.end() ? -1 : found->second;
}

std::unique_ptr<TokenModel::Scratch> BpeModel::make_scratch() const {
  return std::make_unique<Memory>();
}

void BpeModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  auto& memory = static_cast<Memory&>(scratch);
  if (!cuts_at_mark_) {
    encode_word(piece, memory, ids);
    return;
  }
  // Nothing merges across the front of a mark: what lies between marks is encoded by itself.
  size_t begin = 0;
  for (size_t at = piece.find(kSpaceMark, 1); at != std::string_view::npos;
       at = piece.find(kSpaceMark, at + kSpaceMark.size())) {
    const bool behind_mark = at >= kSpaceMark.size() &&
                             piece.substr(at - kSpaceMark.size(), kSpaceMark.size()) == kSpaceMark;
    if (behind_mark) continue;
    encode_word(piece.substr(begin, at - begin), memory, ids);
    begin = at;
  }
  encode_word(piece.substr(begin), memory, ids);
}

void BpeModel::encode_word(std::string_view word, Memory& memory, std::vector<int32_t>& ids) const {
  const auto compute = [&] {
    memory.symbols.clear();
    if (ignore_merges_) {
      if (const auto found = whole_.find(word); found != whole_.end()) {
        memory.symbols.push_back(found->second);
        return;
      }
    }
    append_symbols(word, memory.symbols);
    if (memory.symbols.size() <= kFewSymbols) {
      merge_few(memory.symbols, memory.ranks);
    } else {
      merge_pairs(memory.symbols, merges_);
    }
  };
  const auto look_up = [&](auto& table) {
    bool found = false;
    auto& slot = table.find(word, found);
    if (found) {
      const size_t size = ids.size();
      ids.resize(size + slot.count);
      std::copy_n(slot.ids.begin(), slot.count, ids.begin() + static_cast<std::ptrdiff_t>(size));
      return;
    }
    compute();
    table.store(slot, memory.symbols);
    ids.insert(ids.end(), memory.symbols.begin(), memory.symbols.end());
  };
  if (word.size() <= ShortPieces::kLongestKey) {
    look_up(memory.short_pieces);
  } else if (word.size() <= LongPieces::kLongestKey) {
    look_up(memory.long_pieces);
  } else {
    compute();
    ids.insert(ids.end(), memory.symbols.begin(), memory.symbols.end());
  }
}

void BpeModel::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  if (!byte_level_) {
    append_characters(word, symbols);
    return;
  }
  bool last_is_unknown = false;
  for (const char c : word) {
    const int32_t id = bytes_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (unknown_ >= 0 && !(fuse_unknown_ && last_is_unknown)) {
      symbols.push_back(unknown_);
    }
    last_is_unknown = id < 0;
  }
}

void BpeModel::append_characters(std::string_view word, std::vector<int32_t>& symbols) const {
  bool pending = false;  // an unknown token, put down in front of the next character that is known
  const auto put_down = [&] {
    if (pending) symbols.push_back(unknown_);
    pending = false;
  };
  for (size_t position = 0; position < word.size();) {
    const CodePoint c = code_point_at(word, position);
    const std::string_view bytes = word.substr(position, c.bytes);
    position += c.bytes;
    if (const int32_t id = id_of(c.value); id >= 0) {
      put_down();
      symbols.push_back(id);
    } else if (byte_fallback_ && std::all_of(bytes.begin(), bytes.end(), [&](char byte) {
                 return bytes_[static_cast<uint8_t>(byte)] >= 0;
               })) {
      for (const char byte : bytes) symbols.push_back(bytes_[static_cast<uint8_t>(byte)]);
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) put_down();
      pending = true;
    }
  }
  put_down();
}

void BpeModel::merge_few(std::vector<int32_t>& symbols, std::vector<uint32_t>& ranks) const {
  size_t count = symbols.size();
  if (count < 2) return;
  const auto rank_at = [&](size_t i) { return merges_.find(symbols[i], symbols[i + 1]).rank; };
  ranks.resize(count);
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_at(i);
  while (count > 1) {
    const auto end = ranks.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    const auto best = std::min_element(ranks.begin(), end);
    if (*best == Merge::kNoRank) break;
    const auto at = static_cast<size_t>(best - ranks.begin());
    symbols[at] = merges_.find(symbols[at], symbols[at + 1]).id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(at));
    --count;
    if (at + 1 < count) ranks[at] = rank_at(at);
    if (at > 0) ranks[at - 1] = rank_at(at - 1);
  }
}

}  // namespace

std::unique_ptr<TokenModel> make_bpe_model(BpeVocabulary vocabulary, const std::string& where) {
  return std::make_unique<BpeModel>(std::move(vocabulary), where);
}

}  // namespace fp8train::tokenizers
