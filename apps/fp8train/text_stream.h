#pragma once
// What commands print: text of tokens that come one after the other, and progress.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "data/tokenizer.h"

namespace fp8train {

/// Hands out the text of tokens as far as later tokens do not change it: characters that several
/// tokens make up come whole. Refers to the tokenizer.
class TextStream {
 public:
  using Sink = std::function<void(std::string_view text)>;

  TextStream(const Tokenizer& tokenizer, Sink sink)
      : tokenizer_(tokenizer), sink_(std::move(sink)) {}

  void add(const std::vector<int32_t>& ids);
  /// Hands out the rest; returns the whole text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  Sink sink_;
  std::vector<int32_t> ids_;
  size_t done_ = 0;  ///< bytes that were handed out
};

/// Writes to standard output at once.
void print_at_once(std::string_view text);

/// A line on standard error every five seconds of a long work.
class ProgressLine {
 public:
  /// Whether it is time for the next one.
  bool is_due() {
    constexpr double kSeconds = 5;
    const bool due = since_last_.seconds() >= kSeconds;
    if (due) since_last_.restart();
    return due;
  }
  /// Since the work began.
  double seconds() const { return total_.seconds(); }

 private:
  Stopwatch total_, since_last_;
};

}  // namespace fp8train
