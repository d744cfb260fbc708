#include "data/chat/jinja/text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/tokenizers/unicode.h"

namespace fp8train::jinja {
namespace {

using tokenizers::CodePoint;

/// Changes each code point: `raises` says of one after another which becomes upper case.
template <typename Raises>
std::string changed(std::string_view text, Raises raises) {
  constexpr char32_t kSharpS = 0xDF;  // the letter with two in upper case
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = tokenizers::whole_code_point_at(text, at);
    const std::string_view bytes = text.substr(at, c.bytes);
    at += c.bytes;
    const bool is_upper = raises(c.value);
    if (c.value == 0) {
      out += bytes;  // no whole code point
    } else if (!is_upper) {
      out += tokenizers::lower_case(bytes);
    } else if (c.value == kSharpS) {
      out += raises(c.value) ? "SS" : "Ss";  // as a second letter: upper() and title()
    } else {
      tokenizers::append_utf8(out, tokenizers::upper_case(c.value));
    }
  }
  return out;
}

}  // namespace

void Text::append(const Text& other) {
  const size_t shift = bytes.size();
  bytes += other.bytes;
  for (const Span& span : other.spans) {
    const Span moved = {span.begin + shift, span.end + shift, span.message};
    if (!spans.empty() && spans.back().end == moved.begin &&
        spans.back().message == moved.message) {
      spans.back().end = moved.end;
    } else {
      spans.push_back(moved);
    }
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text part(bytes.substr(begin, end - begin));
  part.is_markup = is_markup;
  const auto first = std::partition_point(spans.begin(), spans.end(),
                                          [&](const Span& span) { return span.end < begin; });
  for (auto span = first; span != spans.end() && span->begin <= end; ++span) {
    const Span cut = {std::max(span->begin, begin), std::min(span->end, end), span->message};
    const bool is_mark = cut.begin == cut.end && (span->begin == span->end || begin == end);
    if (cut.begin < cut.end || is_mark) {
      part.spans.push_back({cut.begin - begin, cut.end - begin, cut.message});
    }
  }
  return part;
}

Text Text::changed_to(std::string changed) const {
  Text text(std::move(changed));
  text.is_markup = is_markup;
  if (text.bytes.size() == bytes.size()) {
    text.spans = spans;
  } else if (!spans.empty()) {
    text.spans = {{0, text.bytes.size(), spans.front().message}};
  }
  return text;
}

Text Text::escaped() const {
  if (is_markup) return *this;
  constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
  Text out;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const auto& [c, name] : kEscapes) {
      if (bytes[at] != c) continue;
      out.append(slice(begin, at));
      out.append(slice(at, at + 1).changed_to(std::string(name)));
      begin = at + 1;
    }
  }
  out.append(slice(begin, bytes.size()));
  out.is_markup = true;
  return out;
}

bool is_python_space(char32_t c) {
  return tokenizers::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

Text stripped(const Text& text, bool at_start, bool at_end, const std::string* characters) {
  std::u32string set;
  for (size_t at = 0; characters != nullptr && at < characters->size();) {
    const tokenizers::CodePoint c = tokenizers::whole_code_point_at(*characters, at);
    set += c.value;
    at += c.bytes;
  }
  std::sort(set.begin(), set.end());
  const auto drops = [&](char32_t c) {
    return characters == nullptr ? is_python_space(c)
                                 : std::binary_search(set.begin(), set.end(), c);
  };
  const size_t begin = at_start ? tokenizers::spaces_at_start(text.bytes, drops) : 0;
  const size_t end =
      at_end ? tokenizers::without_spaces_at_end(text.bytes, drops) : text.bytes.size();
  return text.slice(begin, std::max(begin, end));
}

size_t find_in(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

int64_t length_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t byte_of(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<uint8_t>(text[at]) & 0xC0) != 0x80 && index-- == 0) break;
  }
  return at;
}

std::string upper(std::string_view text) {
  return changed(text, [](char32_t) { return true; });
}

std::string lower(std::string_view text) {
  return changed(text, [](char32_t) { return false; });
}

std::string title(std::string_view text) {
  return changed(text, [behind_letter = false](char32_t c) mutable {
    return !std::exchange(behind_letter, tokenizers::is_letter(c));
  });
}

std::string capitalized(std::string_view text) {
  return changed(text,
                 [is_first = true](char32_t) mutable { return std::exchange(is_first, false); });
}

std::string titled_words(std::string_view text) {
  return changed(text, [is_first = true](char32_t c) mutable {
    const bool separates =
        is_python_space(c) || c == '-' || c == '(' || c == '[' || c == '{' || c == '<';
    return std::exchange(is_first, separates);
  });
}

}  // namespace fp8train::jinja
