#include "text_stream.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/screen.h"
#include "data/utf8.h"

namespace fp8train {

void TextStream::add(const std::vector<int32_t>& ids) {
  constexpr std::string_view kNoCharacter = "\xEF\xBF\xBD";  // U+FFFD: perhaps more bytes follow
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  // All of it each time: a token's text depends on those before it.
  const std::string text = tokenizer_.decode(ids_);
  std::string_view certain = without_cut_end(text);
  while (certain.ends_with(kNoCharacter)) certain.remove_suffix(kNoCharacter.size());
  if (certain.size() > done_) {
    sink_(certain.substr(done_));
    done_ = certain.size();
  }
}

std::string TextStream::finish() {
  std::string text = tokenizer_.decode(ids_);
  if (text.size() > done_) sink_(std::string_view(text).substr(done_));
  done_ = text.size();
  return text;
}

void print_at_once(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

ProgressLine::ProgressLine() {
  const char* const terminal = std::getenv("TERM");
  renewed_ =
      isatty(fileno(stderr)) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

void ProgressLine::finish() {
  if (shown_) std::fputs(kRenew, stderr);
  shown_ = false;
}

void ProgressLine::print(const std::string& text) {
  if (!renewed_) return print_fitted(stderr, "{}\n", text);
  shown_ = true;
  std::fputs((kRenew + text.substr(0, terminal_columns(stderr) - 1)).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace fp8train
