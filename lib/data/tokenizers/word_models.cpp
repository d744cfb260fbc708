#include "data/tokenizers/word_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {

namespace {

constexpr char kWordBegin = '\xFF';  // no byte of UTF-8

/// All tokens may begin a word; those with the prefix may follow another one.
TextMatcher reversed_tokens(const std::vector<std::string>& tokens, const std::string& prefix,
                            const std::string& where) {
  std::vector<TextMatcher::Entry> entries;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& token = tokens[id];
    if (token.empty()) continue;
    const std::string reversed(token.rbegin(), token.rend());
    entries.emplace_back(reversed + kWordBegin, static_cast<int32_t>(id));
    if (token.starts_with(prefix)) {
      entries.emplace_back(reversed.substr(0, token.size() - prefix.size()),
                           static_cast<int32_t>(id));
    }
  }
  return {entries, where};
}

}  // namespace

class WordModel::Memory final : public TokenModel::Scratch {
 public:
  std::vector<TextMatcher::Match> longest;  ///< token that begins at each byte of the word
};

WordModel::WordModel(WordVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)), most_characters_(vocabulary.most_characters) {
  for (size_t id = 0; id < tokens().size(); ++id) {
    if (!tokens()[id].empty()) ids_.emplace(tokens()[id], static_cast<int32_t>(id));
  }
  const auto found = ids_.find(vocabulary.unknown);
  if (found == ids_.end()) {
    throw DataError(fmt::format("{}: unk_token '{}' is not in the vocabulary", where,
                                printable(vocabulary.unknown)));
  }
  unknown_ = found->second;
  if (!vocabulary.whole_words) {
    reversed_.emplace(reversed_tokens(tokens(), vocabulary.continuing_prefix, where));
  }
}

std::unique_ptr<TokenModel::Scratch> WordModel::make_scratch() const {
  return std::make_unique<Memory>();
}

bool WordModel::append_parts(std::string_view word, Memory& memory,
                             std::vector<int32_t>& ids) const {
  auto& longest = memory.longest;
  longest.resize(word.size());
  int32_t state = TextMatcher::kStart;
  for (size_t at = word.size(); at-- > 0;) {
    state = reversed_->next(state, word[at]);
    longest[at] = reversed_->longest(state);
  }
  longest[0] = reversed_->longest(reversed_->next(state, kWordBegin));
  for (size_t begin = 0; begin < word.size(); begin += longest[begin].length) {
    if (longest[begin].value < 0) return false;
    if (begin == 0) longest[0].length -= 1;  // without kWordBegin
    ids.push_back(longest[begin].value);
  }
  return true;
}

void WordModel::encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (!reversed_) {
    const auto found = ids_.find(piece);
    ids.push_back(found == ids_.end() ? unknown_ : found->second);
    return;
  }
  const size_t before = ids.size();
  const auto characters =
      std::count_if(piece.begin(), piece.end(), [](char c) { return !is_continuation(c); });
  if (characters > most_characters_ || !append_parts(piece, static_cast<Memory&>(scratch), ids)) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
}

}  // namespace fp8train::tokenizers
