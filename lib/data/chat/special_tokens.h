#pragma once
// The special tokens that a chat template writes.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train {

/// A special token in a text.
struct FoundToken {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

/// Finds special tokens in texts: those that the tokenizer calls so, and other added tokens of the
/// form <...>, which are as special to a chat template. Immutable.
class SpecialTokens {
 public:
  explicit SpecialTokens(const Tokenizer& tokenizer);

  /// Returns those in `text`, in order; at each position the longest.
  std::vector<FoundToken> in(std::string_view text) const;
  /// Returns the id of the token with this text, or -1.
  int32_t id_of(std::string_view text) const;
  /// The texts of the tokens that begin and end a sequence; empty where there are none. Tokens that
  /// have no text in the tokenizer are written as <s> and </s>.
  const std::string& bos() const { return bos_; }
  const std::string& eos() const { return eos_; }

 private:
  std::string text_of(int32_t id, const char* otherwise);

  std::map<std::string, int32_t, std::less<>> ids_;
  std::set<size_t, std::greater<>> lengths_;
  std::string bos_, eos_;
};

}  // namespace fp8train
