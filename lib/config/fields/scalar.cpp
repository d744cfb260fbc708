#include "config/fields/scalar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

namespace fp8train {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Cuts the digits at the front of `text` off.
std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && is_digit(text[count])) {
    ++count;
  }
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

std::optional<int> take_exponent(std::string_view& text) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) {
    return 0;
  }
  text.remove_prefix(1);
  bool negative = false;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const std::string_view digits = take_digits(text);
  if (digits.empty() || digits.size() > 3) {
    return std::nullopt;
  }
  int value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return negative ? -value : value;
}

std::optional<int> suffix_exponent(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  if (text.size() == 1) {
    switch (text[0]) {
      case 'k':
      case 'K':
        return 3;
      case 'M':
        return 6;
      case 'B':
      case 'G':
        return 9;
      case 'T':
        return 12;
      default:
        break;
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> shifted_by_ten(std::string digits, int exponent) {
  while (!digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++exponent;
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) {
    return 0;
  }
  if (exponent < 0 || exponent + digits.size() > 20) {
    return std::nullopt;
  }
  digits.append(static_cast<size_t>(exponent), '0');
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc()) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::optional<WholeNumber> parse_whole(std::string_view text) {
  WholeNumber result;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    result.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const std::string_view whole = take_digits(text);
  if (whole.empty() || (whole.size() > 1 && whole[0] == '0')) {
    return std::nullopt;
  }
  std::string digits(whole);
  int exponent = 0;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    const std::string_view fraction = take_digits(text);
    if (fraction.size() > 1000) {
      return std::nullopt;
    }
    digits += fraction;
    exponent -= static_cast<int>(fraction.size());
  }
  const std::optional<int> written = take_exponent(text);
  const std::optional<int> suffix = suffix_exponent(text);
  if (!written || !suffix) {
    return std::nullopt;
  }
  const auto magnitude = shifted_by_ten(std::move(digits), exponent + *written + *suffix);
  constexpr auto kLowest = uint64_t{1} << 63;
  if (!magnitude || (result.negative && *magnitude > kLowest)) {
    return std::nullopt;
  }
  result.magnitude = *magnitude;
  result.negative = result.negative && *magnitude != 0;
  return result;
}

std::optional<double> parse_number(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') {
    text.remove_prefix(1);
  }
  const bool plausible = !text.empty() && (is_digit(text[0]) || text[0] == '.' || text[0] == '-');
  if (!plausible) {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<double> parse_duration(std::string_view text) {
  struct Unit {
    char letter;
    double seconds;
  };
  constexpr std::array<Unit, 4> kUnits = {{{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}}};
  if (const auto seconds = parse_number(text)) {
    return *seconds < 0 ? std::nullopt : seconds;
  }
  double total = 0;
  size_t first_unit = 0;
  while (!text.empty()) {
    const std::string_view digits = take_digits(text);
    if (digits.empty() || digits.size() > 9 || text.empty()) {
      return std::nullopt;
    }
    size_t unit = first_unit;
    while (unit < kUnits.size() && kUnits[unit].letter != text[0]) {
      ++unit;
    }
    if (unit == kUnits.size()) {
      return std::nullopt;
    }
    int64_t count = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), count);
    total += static_cast<double>(count) * kUnits[unit].seconds;
    first_unit = unit + 1;
    text.remove_prefix(1);
    if (text.empty()) {
      return total;
    }
  }
  return std::nullopt;
}

std::optional<bool> parse_bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") {
    return true;
  }
  if (text == "false" || text == "False" || text == "FALSE") {
    return false;
  }
  return std::nullopt;
}

std::string number_text(double value) {
  return fmt::format("{}", value);
}
std::string number_text(float value) {
  return fmt::format("{}", value);
}

std::string duration_text(double seconds) {
  constexpr double kLongest = 1e9;
  if (seconds != std::floor(seconds) || seconds < 1 || seconds > kLongest) {
    return number_text(seconds);
  }
  auto rest = static_cast<int64_t>(seconds);
  std::string result;
  for (const auto& [letter, length] :
       {std::pair{'d', int64_t{86400}}, std::pair{'h', int64_t{3600}}, std::pair{'m', int64_t{60}},
        std::pair{'s', int64_t{1}}}) {
    if (rest >= length) {
      result += fmt::format("{}{}", rest / length, letter);
      rest %= length;
    }
  }
  return result;
}

std::string yaml_text(const std::string& text) {
  const auto is_safe = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '/' || c == '-';
  };
  // Words and numbers that some YAML reader takes for something other than text.
  constexpr std::array<std::string_view, 10> kWords = {"null", "true", "false", "yes", "no",
                                                       "on",   "off",  "y",     "n",   "~"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const bool starts_well =
      !text.empty() && (text[0] == '/' || (lower[0] >= 'a' && lower[0] <= 'z') ||
                        (text[0] == '.' && text.size() > 1 && (text[1] == '.' || text[1] == '/')));
  if (starts_well && std::all_of(text.begin(), text.end(), is_safe) && text != "..." &&
      std::find(kWords.begin(), kWords.end(), lower) == kWords.end()) {
    return text;
  }
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace fp8train
