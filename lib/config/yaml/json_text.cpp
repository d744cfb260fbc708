#include "config/yaml/yaml_tree.h"

#include <algorithm>
#include <string_view>

namespace fp8train {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

/// Returns the end of the comment that begins at `at`, or `at` if none does. `before`: the last
/// character before it that is not blank. A path after a colon (`//host/file`) is no comment, and
/// neither are slashes within a word.
size_t end_of_comment(std::string_view text, size_t at, char before) {
  const std::string_view rest = text.substr(at);
  const bool in_word = at > 0 && (kBlanks.find(text[at - 1]) == std::string_view::npos) &&
                       std::string_view(",{}[]\"'/").find(text[at - 1]) == std::string_view::npos;
  if (in_word) {
    return at;
  }
  if (rest.starts_with("/*")) {
    const size_t end = rest.find("*/", 2);
    return end == std::string_view::npos ? at : at + end + 2;
  }
  if (rest.starts_with('#') || (rest.starts_with("//") && before != ':')) {
    return std::min(text.find('\n', at), text.size());
  }
  return at;
}

}  // namespace

bool is_toml(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const size_t begin = line.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos || line[begin] == '#') {
      continue;
    }
    const std::string_view rest = line.substr(begin, line.find_last_not_of(kBlanks) + 1 - begin);
    const bool is_section = rest.starts_with('[') && rest.ends_with(']') &&
                            rest.find_first_of(",:{\"'") == std::string_view::npos;
    const size_t equals = rest.find('=');
    return is_section ||
           (equals != std::string_view::npos && equals > 0 &&
            rest.substr(0, equals).find_first_of(":{[\"'#") == std::string_view::npos);
  }
  return false;
}

std::string json_as_yaml(std::string text) {
  constexpr std::string_view kBegin = "{\"";  // a flow mapping of YAML has other keys
  std::string plain = text;
  char before = ' ', quote = 0;
  size_t seen = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const char c = plain[i];
    if (quote != 0) {
      i += c == '\\' && quote == '"' ? 1 : 0;
      quote = c == quote ? 0 : quote;
      continue;
    }
    if (const size_t end = end_of_comment(text, i, before); end > i) {
      for (; i < end; ++i) {
        plain[i] = plain[i] == '\n' ? '\n' : ' ';
      }
      --i;
      continue;
    }
    if (kBlanks.find(c) != std::string_view::npos) {
      plain[i] = c == '\t' ? ' ' : c;
      continue;
    }
    if (seen < kBegin.size() && c != kBegin[seen++]) {
      return text;
    }
    // After other characters an apostrophe is a character like any other.
    const bool begins_value = std::string_view("{[,:").find(before) != std::string_view::npos;
    quote = c == '"' || (c == '\'' && begins_value) ? c : 0;
    before = c;
  }
  return seen == kBegin.size() ? plain : text;
}

}  // namespace fp8train
