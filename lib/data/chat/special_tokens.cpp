#include "data/chat/special_tokens.h"

#include <algorithm>

namespace fp8train {

SpecialTokens::SpecialTokens(const Tokenizer& tokenizer) {
  for (auto& [text, id, is_special] : tokenizer.added_tokens()) {
    const bool is_marked = text.size() > 2 && text.starts_with('<') && text.ends_with('>');
    if (!text.empty() && (is_special || is_marked)) ids_.emplace(std::move(text), id);
  }
  bos_ = text_of(tokenizer.bos_id(), "<s>");
  eos_ = text_of(tokenizer.eos_id(), "</s>");
  for (const auto& entry : ids_) lengths_.insert(entry.first.size());
}

std::string SpecialTokens::text_of(int32_t id, const char* otherwise) {
  if (id < 0) return ids_.contains(otherwise) ? otherwise : "";
  const auto found =
      std::find_if(ids_.begin(), ids_.end(), [&](const auto& entry) { return entry.second == id; });
  if (found != ids_.end()) return found->first;
  ids_.emplace(otherwise, id);
  return otherwise;
}

int32_t SpecialTokens::id_of(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? -1 : found->second;
}

std::vector<FoundToken> SpecialTokens::in(std::string_view text) const {
  std::vector<FoundToken> found;
  for (size_t at = 0; at < text.size();) {
    size_t next = at + 1;
    for (const size_t length : lengths_) {
      if (length > text.size() - at) continue;
      const int32_t id = id_of(text.substr(at, length));
      if (id < 0) continue;
      found.push_back({at, at + length, id});
      next = at + length;
      break;
    }
    at = next;
  }
  return found;
}

}  // namespace fp8train
