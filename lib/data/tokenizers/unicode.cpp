#include "data/tokenizers/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kFirstMark = 0x300;  // NFC leaves what is below as it is

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_between(utf8proc_category_t value, utf8proc_category_t first, utf8proc_category_t last) {
  return value >= first && value <= last;
}

/// By the tables; Hangul syllables, which have rules of their own, are not in them.
bool decomposes(char32_t c) {
  return utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->decomp_seqindex != UINT16_MAX;
}

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                        (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

void append_normalized(std::string& text, std::string_view run, NormalForm form) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(run.data()),
                   static_cast<utf8proc_ssize_t>(run.size()), &made, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(made, std::free);
  if (length < 0) {
    throw std::bad_alloc();  // the only failure with well-formed text
  }
  text.append(reinterpret_cast<const char*>(made), static_cast<size_t>(length));
}

/// Whether NFC leaves the text as it is for sure.
bool is_surely_composed(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    if (static_cast<uint8_t>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const CodePoint c = code_point_at(text, position);
    const bool han = c.value >= 0x4E00 && c.value <= 0x9FFF;
    const bool kana = c.value >= 0x3041 && c.value <= 0x3096;
    const bool cyrillic = c.value >= 0x400 && c.value <= 0x481;
    if (c.value >= kFirstMark && !han && !kana && !cyrillic) return false;
    position += c.bytes;
  }
  return true;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) {
    return position + i < text.size() ? static_cast<uint8_t>(text[position + i]) : uint8_t{0};
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3FU), 2};
  if (lead < 0xF0) {
    return {((lead & 0x0F) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU), 3};
  }
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3FU) << 12) | ((byte(2) & 0x3FU) << 6) |
              (byte(3) & 0x3FU),
          4};
}

CodePoint whole_code_point_at(std::string_view bytes, size_t position) {
  return code_point_length(bytes, position) == 0 ? CodePoint{0, 1} : code_point_at(bytes, position);
}

CodePoint code_point_before(std::string_view bytes, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && is_continuation(bytes[begin])) --begin;
  return code_point_length(bytes, begin) == end - begin ? code_point_at(bytes, begin)
                                                        : CodePoint{0, 1};
}

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c));
    return;
  }
  std::array<utf8proc_uint8_t, 4> bytes = {};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

std::string well_formed(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t position = 0; position < bytes.size();) {
    const size_t length = code_point_length(bytes, position);
    if (length > 0) {
      text.append(bytes, position, length);
      position += length;
    } else {
      append_utf8(text, kReplacement);
      position += damaged_length(bytes, position);
    }
  }
  return text;
}

bool is_ascii(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080U;
  size_t position = 0;
  for (; position + sizeof(uint64_t) <= text.size(); position += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + position, sizeof(word));
    if ((word & kHighBits) != 0) return false;
  }
  return std::all_of(text.begin() + static_cast<std::ptrdiff_t>(position), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool is_white_space(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
           (c >= 0x7B && c <= 0x7E);
  }
  return is_between(category(c), UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_letter(char32_t c) {
  return is_between(category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
}

bool is_number(char32_t c) {
  return is_between(category(c), UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO);
}

bool is_word(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kOthers[] = {{0x200C, 0x200D},
                                                       {0x24B6, 0x24E9},
                                                       {0x1F130, 0x1F149},
                                                       {0x1F150, 0x1F169},
                                                       {0x1F170, 0x1F189}};
  for (const auto& [first, last] : kOthers) {
    if (c >= first && c <= last) return true;
  }
  const utf8proc_category_t found = category(c);
  return is_between(found, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_NL) ||
         found == UTF8PROC_CATEGORY_PC;
}

bool is_stable_letter(char32_t c) {
  return is_between(category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO) && !decomposes(c);
}

bool is_stable_punctuation(char32_t c) {
  return is_punctuation(c) && !decomposes(c);
}

bool is_mark(char32_t c) {
  return is_between(category(c), UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);
}

bool is_nonspacing_mark(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_MN;
}

bool is_control(char32_t c) {
  const utf8proc_category_t found = category(c);
  return found == UTF8PROC_CATEGORY_CN || found >= UTF8PROC_CATEGORY_CC;
}

void normalize(std::string& text, NormalForm form) {
  if (is_ascii(text) || (form == NormalForm::nfc && is_surely_composed(text))) {
    return;
  }
  // ASCII is changed by no form, and composes only with what follows: runs of other code points,
  // each with the character in front of it, are normalized by themselves.
  std::string result;
  result.reserve(text.size());
  const auto is_low = [&](size_t i) { return static_cast<uint8_t>(text[i]) < 0x80; };
  for (size_t position = 0; position < text.size();) {
    size_t begin = position;
    while (begin < text.size() && is_low(begin)) ++begin;
    size_t end = begin;
    while (end < text.size() && !is_low(end)) ++end;
    if (begin == end) {
      result.append(text, position);
      break;
    }
    const size_t run = begin > position ? begin - 1 : begin;
    result.append(text, position, run - position);
    append_normalized(result, std::string_view(text).substr(run, end - run), form);
    position = end;
  }
  text = std::move(result);
}

char32_t upper_case(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kDottedI = 0x130;  // the one code point with two in lower case
  std::string lower;
  lower.reserve(text.size());
  for_each_code_point(text, [&](CodePoint c, size_t /*position*/) {
    if (c.value == kDottedI) {
      lower += "i\xCC\x87";
    } else {
      append_utf8(lower,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))));
    }
  });
  return lower;
}

}  // namespace fp8train::tokenizers
