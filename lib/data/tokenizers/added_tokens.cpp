#include "data/tokenizers/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

bool is_within_word(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word(code_point_before(text, begin).value);
  const bool word_behind = end < text.size() && is_word(code_point_at(text, end).value);
  return word_before || word_behind;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const JsonPart& part, size_t known) {
  std::vector<AddedToken> tokens;
  if (!part.value().is_array()) part.refuse("is not a list");
  for (size_t i = 0; i < part.size(); ++i) {
    const JsonPart entry = part.at(i);
    entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    const int64_t id = entry.number("id");
    AddedToken token = {.id = static_cast<int32_t>(id),
                        .content = entry.text("content"),
                        .single_word = entry.flag_or("single_word", false),
                        .lstrip = entry.flag_or("lstrip", false),
                        .rstrip = entry.flag_or("rstrip", false),
                        .normalized = entry.flag_or("normalized", false),
                        .special = entry.flag_or("special", false)};
    if (token.content.empty()) entry.refuse("an added token has no content");
    require_dense(entry, id, known + part.size());
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& all, bool normalized,
                                   const Normalizer& normalizer, const std::string& where) {
  std::copy_if(all.begin(), all.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  if (tokens_.empty()) return;
  std::vector<TextMatcher::Entry> entries;
  for (size_t i = tokens_.size(); i-- > 0;) {  // of equal texts the first token is found
    const AddedToken& token = tokens_[i];
    std::string text = token.content;
    if (normalized && normalizer.apply) normalizer.apply(text);
    if (text.empty()) continue;
    const bool strips = token.lstrip || token.rstrip;
    touches_spaces_ = touches_spaces_ || strips || text.find(' ') != std::string::npos;
    touches_lines_ = touches_lines_ || strips || text.find('\n') != std::string::npos;
    entries.emplace_back(std::string(text.rbegin(), text.rend()), static_cast<int32_t>(i));
  }
  reversed_.emplace(entries, where);
}

void AddedTokenFinder::split(std::string_view whole, bool at_start, const TextSink& text,
                             const TokenSink& token) const {
  size_t done = 0;
  const auto between = [&](size_t end) {
    if (end > done) text(whole.substr(done, end - done), at_start && done == 0);
  };
  std::vector<std::pair<size_t, TextMatcher::Match>> found;  // the last of the text first
  int32_t state = TextMatcher::kStart;
  for (size_t at = reversed_ ? whole.size() : 0; at-- > 0;) {
    state = reversed_->next(state, whole[at]);
    const TextMatcher::Match longest = reversed_->longest(state);
    if (longest.value >= 0) found.emplace_back(at, longest);
  }
  for (size_t position = 0; !found.empty(); found.pop_back()) {
    auto [begin, match] = found.back();
    if (begin < position) continue;
    const AddedToken& added = tokens_[static_cast<size_t>(match.value)];
    size_t end = begin + match.length;
    position = end;
    if (added.single_word && is_within_word(whole, begin, end)) continue;
    if (added.lstrip) begin = std::max(done, without_spaces_at_end(whole.substr(0, begin)));
    if (added.rstrip) end += spaces_at_start(whole.substr(end));
    between(begin);
    token(added.id);
    done = end;
    position = end;
  }
  between(whole.size());
}

}  // namespace fp8train::tokenizers
