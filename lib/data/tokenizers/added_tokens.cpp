#include "data/tokenizers/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr int64_t kMostAddedIds = int64_t{1} << 24;

bool is_within_word(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && is_word(code_point_before(text, begin).value);
  const bool word_behind = end < text.size() && is_word(code_point_at(text, end).value);
  return word_before || word_behind;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const JsonPart& part) {
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
    if (id < 0 || id >= kMostAddedIds || token.content.empty()) {
      entry.refuse("an added token has a content and an id between 0 and 2^24");
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& all, bool normalized,
                                   const Normalizer& normalizer) {
  std::copy_if(all.begin(), all.end(), std::back_inserter(tokens_),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  for (const AddedToken& token : tokens_) {
    std::string text = token.content;
    if (normalized && normalizer.apply) normalizer.apply(text);
    if (text.empty()) continue;
    const bool strips = token.lstrip || token.rstrip;
    touches_spaces_ = touches_spaces_ || strips || text.find(' ') != std::string::npos;
    touches_lines_ = touches_lines_ || strips || text.find('\n') != std::string::npos;
    auto& same_byte = by_first_byte_[static_cast<uint8_t>(text.front())];
    same_byte.push_back({&token, std::move(text)});
  }
  for (auto& found : by_first_byte_) {
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.text.size() > b.text.size(); });
  }
}

const AddedTokenFinder::Found* AddedTokenFinder::longest_at(std::string_view text,
                                                            size_t position) const {
  for (const Found& found : by_first_byte_[static_cast<uint8_t>(text[position])]) {
    if (text.compare(position, found.text.size(), found.text) == 0) return &found;
  }
  return nullptr;
}

void AddedTokenFinder::split(std::string_view whole, bool at_start, const TextSink& text,
                             const TokenSink& token) const {
  size_t done = 0;
  const auto between = [&](size_t end) {
    if (end > done) text(whole.substr(done, end - done), at_start && done == 0);
  };
  for (size_t position = 0; !tokens_.empty() && position < whole.size();) {
    const Found* const found = longest_at(whole, position);
    if (found == nullptr) {
      ++position;
      continue;
    }
    size_t begin = position;
    size_t end = position + found->text.size();
    position = end;
    if (found->token->single_word && is_within_word(whole, begin, end)) continue;
    if (found->token->lstrip) begin = std::max(done, without_spaces_at_end(whole.substr(0, begin)));
    if (found->token->rstrip) end += spaces_at_start(whole.substr(end));
    between(begin);
    token(found->token->id);
    done = end;
    position = std::max(position, end);
  }
  between(whole.size());
}

}  // namespace fp8train::tokenizers
