#pragma once
// Strict conversions between a setting's text and its value. Parsing never guesses: the whole text
// must be understood, otherwise the result is empty.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fp8train {

/// A whole number in [-2^63, 2^64): sign and magnitude.
struct WholeNumber {
  bool negative = false;
  uint64_t magnitude = 0;
};

/// "42", "-1", "1e3", "1.5B", "100M": a sign, decimal digits, fraction, exponent and one of K (or
/// k) M B G T (10^3, 10^6, 10^9, 10^9, 10^12), as long as the result is whole. No hexadecimal, no
/// leading zeros, no separators.
std::optional<WholeNumber> parse_whole(std::string_view text);

/// Parses a finite decimal number, such as "1e-4", "0.5" and ".5".
std::optional<double> parse_number(std::string_view text);

/// Parses "3h50m", "90s", "1d12h", or seconds as a number, into seconds, which are not negative.
std::optional<double> parse_duration(std::string_view text);

/// "true" or "false", also True and TRUE.
std::optional<bool> parse_bool(std::string_view text);

/// Returns the shortest text that reads back as the same value.
std::string number_text(double value);
std::string number_text(float value);

/// Returns "3h50m"; seconds with a fraction, below 1 or above 1e9 stay a plain number.
std::string duration_text(double seconds);

/// `text` as a YAML scalar that reads back as the same text everywhere: plain when it is safe,
/// else in double quotes.
std::string yaml_text(const std::string& text);

}  // namespace fp8train
