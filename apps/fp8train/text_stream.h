#pragma once
// The output of commands: text of tokens that come one after the other, and progress.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/not_copied.h"
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

inline constexpr const char* kRenew = "\r\x1b[K";  ///< begins the line of a terminal anew

/// How far a long work is, on standard error: one line that is renewed on a terminal, elsewhere a
/// line every five seconds.
class ProgressLine : NotCopied {
 public:
  ProgressLine();
  ~ProgressLine() { finish(); }

  /// Prints the text that `text()` returns, without a line feed, if it is time for it.
  template <class Text>
  void show(const Text& text) {
    if (since_last_.seconds() >= (renewed_ ? 0.2 : 5)) {
      since_last_.restart();
      print(text());
    }
  }
  /// Removes the renewed line.
  void finish();
  /// Since the work began.
  double seconds() const { return total_.seconds(); }

 private:
  void print(const std::string& text);

  Stopwatch total_, since_last_;
  bool renewed_, shown_ = false;
};

}  // namespace fp8train
