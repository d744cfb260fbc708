#include "data/tokenizers/word_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {

WordModel::WordModel(WordVocabulary vocabulary, const std::string& where)
    : TokenModel(std::move(vocabulary.tokens)),
      continuing_prefix_(std::move(vocabulary.continuing_prefix)),
      most_characters_(vocabulary.most_characters),
      whole_words_(vocabulary.whole_words) {
  for (size_t id = 0; id < tokens().size(); ++id) {
    if (!tokens()[id].empty()) ids_.emplace(tokens()[id], static_cast<int32_t>(id));
  }
  const auto found = ids_.find(vocabulary.unknown);
  if (found == ids_.end()) {
    throw DataError(fmt::format("{}: unk_token '{}' is not in the vocabulary", where,
                                printable(vocabulary.unknown)));
  }
  unknown_ = found->second;
}

std::unique_ptr<TokenModel::Scratch> WordModel::make_scratch() const {
  class Nothing final : public Scratch {};
  return std::make_unique<Nothing>();
}

bool WordModel::append_parts(std::string_view word, std::vector<int32_t>& ids) const {
  std::string candidate;
  for (size_t begin = 0; begin < word.size();) {
    size_t end = word.size();
    auto found = ids_.end();
    for (; end > begin; --end) {
      if (end < word.size() && is_continuation(word[end])) continue;
      candidate = begin > 0 ? continuing_prefix_ : "";
      candidate += word.substr(begin, end - begin);
      found = ids_.find(candidate);
      if (found != ids_.end()) break;
    }
    if (found == ids_.end()) return false;
    ids.push_back(found->second);
    begin = end;
  }
  return true;
}

void WordModel::encode(std::string_view piece, Scratch& /*scratch*/,
                       std::vector<int32_t>& ids) const {
  if (whole_words_) {
    const auto found = ids_.find(piece);
    ids.push_back(found == ids_.end() ? unknown_ : found->second);
    return;
  }
  const size_t before = ids.size();
  const auto characters =
      std::count_if(piece.begin(), piece.end(), [](char c) { return !is_continuation(c); });
  if (characters > most_characters_ || !append_parts(piece, ids)) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
}

}  // namespace fp8train::tokenizers
