#include "data/chat/id_writer.h"

#include <algorithm>

#include "data/tokenizers/unicode.h"

namespace fp8train {
namespace {

class IdWriter {
 public:
  IdWriter(std::string_view text, const std::vector<ByteRange>& targets, const Tokenizer& tokenizer)
      : text_(text), targets_(targets), tokenizer_(tokenizer) {}

  /// The text up to a token, and the token.
  void add(const FoundToken& token) {
    const TokenStrips strips = tokenizer_.strips(token.id);
    std::string_view before = text_.substr(done_, token.begin - done_);
    if (strips.before) before = before.substr(0, tokenizers::without_spaces_at_end(before));
    add_text(before);
    out_.ids.push_back(token.id);
    out_.is_target.push_back(std::any_of(targets_.begin(), targets_.end(), [&](ByteRange range) {
      return range.begin <= token.begin && token.end <= range.end;
    }));
    done_ = token.end;
    if (strips.after) done_ += tokenizers::spaces_at_start(text_.substr(done_));
  }

  ChatEncoder::Encoded finish() {
    add_text(text_.substr(done_));
    return std::move(out_);
  }

 private:
  /// Text without special tokens is encoded in one piece.
  void add_text(std::string_view part) {
    if (part.empty()) return;
    const bool at_start = out_.ids.empty();
    const std::vector<int32_t> ids = tokenizer_.encode_ordinary(part, at_start);
    const size_t first = out_.ids.size();
    out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
    out_.is_target.resize(out_.ids.size());
    const auto begin = static_cast<size_t>(part.data() - text_.data());
    for (const ByteRange& range : targets_) {
      const size_t from = std::max(range.begin, begin),
                   to = std::min(range.end, begin + part.size());
      if (from >= to) continue;
      const size_t first_target = ids_before(ids, part.substr(0, from - begin), at_start, false);
      const size_t end = to == begin + part.size()
                             ? ids.size()
                             : ids_before(ids, part.substr(0, to - begin), at_start, true);
      std::fill(out_.is_target.begin() + static_cast<std::ptrdiff_t>(first + first_target),
                out_.is_target.begin() + static_cast<std::ptrdiff_t>(first + end), true);
    }
  }

  /// How many of `ids` belong to a beginning of their text. `counts_shared`: also one that
  /// continues behind it.
  size_t ids_before(const std::vector<int32_t>& ids, std::string_view beginning, bool at_start,
                    bool counts_shared) const {
    if (beginning.empty()) return 0;
    const std::vector<int32_t> alone = tokenizer_.encode_ordinary(beginning, at_start);
    const auto [differs, rest] = std::mismatch(ids.begin(), ids.end(), alone.begin(), alone.end());
    const auto same = static_cast<size_t>(differs - ids.begin());
    return counts_shared && rest != alone.end() && same < ids.size() ? same + 1 : same;
  }

  std::string_view text_;
  const std::vector<ByteRange>& targets_;
  const Tokenizer& tokenizer_;
  ChatEncoder::Encoded out_;
  size_t done_ = 0;
};

}  // namespace

ChatEncoder::Encoded write_ids(const jinja::Text& text, const std::vector<ByteRange>& targets,
                               const Tokenizer& tokenizer, const SpecialTokens& tokens) {
  IdWriter writer(text.bytes, targets, tokenizer);
  size_t begin = 0;
  const auto add_own_text = [&](size_t end) {
    const std::string_view own = std::string_view(text.bytes).substr(begin, end - begin);
    for (const FoundToken& token : tokens.in(own)) {
      writer.add({begin + token.begin, begin + token.end, token.id});
    }
  };
  for (const jinja::Span& span : text.spans) {
    add_own_text(span.begin);
    begin = span.end;
  }
  add_own_text(text.bytes.size());
  return writer.finish();
}

}  // namespace fp8train
