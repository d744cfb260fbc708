#include "data/tokenizers/regex.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/not_copied.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kJitStackStart = 64U << 10;
constexpr size_t kJitStackMost = 64U << 20;

// Classes of Oniguruma that PCRE2 has otherwise: \s is White_Space (PCRE2 has U+180E too), \w
// has marks and connectors, \h is a hexadecimal digit.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9})";
constexpr std::string_view kHex = "0-9a-fA-F";

std::string_view class_of(char letter) {
  switch (letter) {
    case 's':
    case 'S':
      return kSpace;
    case 'w':
    case 'W':
      return kWord;
    case 'h':
    case 'H':
      return kHex;
    default:
      return {};
  }
}

/// The pattern in PCRE2's terms.
std::string translated(std::string_view pattern, const std::string& where) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char letter = pattern[++i];
      const std::string_view members = class_of(letter);
      const bool negated = letter >= 'A' && letter <= 'Z';
      if (members.empty() || (in_class && negated)) {
        result += {c, letter};
      } else {
        result +=
            in_class ? std::string(members) : fmt::format("[{}{}]", negated ? "^" : "", members);
      }
      continue;
    }
    if (in_class && (c == '[' || pattern.substr(i).starts_with("&&"))) {
      throw DataError(
          fmt::format("{}: the pattern '{}' has a class within a class, which is not supported",
                      where, pattern));
    }
    if (c == '[') {
      in_class = true;
      result += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') result += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') {
        result += "\\]";
        ++i;
      }
      continue;
    }
    in_class = in_class && c != ']';
    result += c;
  }
  return result;
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text = {};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// The memory of a thread for matches.
struct MatchMemory : NotCopied {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);

  MatchMemory() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~MatchMemory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

/// A pattern may forbid it, (*NO_JIT), and its compilation succeeds all the same.
bool has_machine_code(const pcre2_code* code) {
  size_t bytes = 0;
  return pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &bytes) == 0 && bytes > 0;
}

}  // namespace

struct Regex::Code : NotCopied {
  pcre2_code* code;
  bool compiled;  ///< to machine code
  std::string where;

  Code(pcre2_code* made, std::string name)
      : code(made),
        compiled(pcre2_jit_compile(made, PCRE2_JIT_COMPLETE) == 0 && has_machine_code(made)),
        where(std::move(name)) {}
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, const std::string& where) {
  const std::string source = translated(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* const code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    throw DataError(fmt::format("{}: the pattern '{}' is not understood: {}", where,
                                printable(pattern), pcre2_message(error)));
  }
  code_ = std::make_shared<const Code>(code, where);
}

bool Regex::find(std::string_view text, size_t from, Span& match) const {
  thread_local const MatchMemory memory;
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int found = code_->compiled
                        ? pcre2_jit_match(code_->code, subject, text.size(), from,
                                          PCRE2_NO_UTF_CHECK, memory.data, memory.context)
                        : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                      memory.data, memory.context);
  if (found == PCRE2_ERROR_NOMATCH) {
    return false;
  }
  if (found < 0) {
    throw DataError(fmt::format("{}: matching the pattern at byte {} failed: {}", code_->where,
                                from, pcre2_message(found)));
  }
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(memory.data);
  match = {bounds[0], bounds[1]};
  return true;
}

size_t Regex::next_code_point(std::string_view text, size_t position) {
  ++position;
  while (position < text.size() && is_continuation(text[position])) ++position;
  return position;
}

void refuse_growth(const std::string& where, size_t most) {
  throw DataError(fmt::format(
      "{}: it makes a text longer than {} bytes (64 times its length and 64 KiB)", where, most));
}

Pattern::Pattern(const JsonPart& part) {
  if (part.has("Regex")) {
    expression_ = part.text("Regex");
    regex_.emplace(expression_, part.where());
  } else if (part.has("String")) {
    literal_ = part.text("String");
    if (literal_.empty()) part.refuse("an empty string matches nothing");
  } else {
    part.refuse("a pattern is {\"String\": ...} or {\"Regex\": ...}");
  }
}

}  // namespace fp8train::tokenizers
