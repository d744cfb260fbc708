// The input is a byte, a tokenizer.json (Hugging Face's or this program's) and a text behind the
// last zero byte. A tokenizer that is accepted is saved and read again as it was; ids are inside
// the vocabulary; byte and character tokenizers give the text back, and a text may be cut where a
// tokenizer allows it.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer.h"
#include "plain_message.h"

namespace {

constexpr size_t kLongestText = 200;

using Ids = std::vector<int32_t>;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// The parts of a text that is cut where the tokenizer says have the ids of the whole.
void check_cut(const fp8train::Tokenizer& tokenizer, const std::string& text, const Ids& ids) {
  const size_t cut = tokenizer.last_cut(text);
  if (cut == 0) {
    return;
  }
  Ids parts = tokenizer.encode(text.substr(0, cut));
  const Ids rest = tokenizer.encode_rest(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  check(parts == ids);
}

void check_text(const fp8train::Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  try {
    ids = tokenizer.encode(text);
  } catch (const fp8train::DataError& error) {
    require_plain(error);
    return;
  }
  for (const int32_t id : ids) {
    check(id >= 0 && (tokenizer.vocab_size() == 0 || id < tokenizer.vocab_size()));
  }
  if (tokenizer.type() == fp8train::TokenizerType::byte ||
      tokenizer.type() == fp8train::TokenizerType::character) {
    check(tokenizer.decode(ids) == text);
  } else if (tokenizer.type() == fp8train::TokenizerType::none) {
    check(tokenizer.encode(tokenizer.decode(ids)) == ids);
  } else {
    tokenizer.decode(ids);
    check_cut(tokenizer, text, ids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) {
    return 0;
  }
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t zero = bytes.rfind('\0');
  const std::string text = zero == std::string::npos ? bytes : bytes.substr(zero + 1, kLongestText);
  try {
    const auto tokenizer =
        fp8train::tokenizer_from_json(bytes.substr(0, std::min(zero, bytes.size())), "input");
    const std::string saved = tokenizer->to_json();
    const auto again = fp8train::tokenizer_from_json(saved, "saved");
    check(again->to_json() == saved && again->vocab_size() == tokenizer->vocab_size());
    check_text(*again, text);
    check_text(*tokenizer, text);
  } catch (const fp8train::DataError& error) {
    require_plain(error);
  }
  try {
    const auto characters = fp8train::make_char_tokenizer(text);
    check_text(*characters, text);
  } catch (const fp8train::DataError& error) {  // not UTF-8, or empty
    require_plain(error);
  }
  check_text(*fp8train::make_byte_tokenizer(), text);
  check_text(*fp8train::make_id_tokenizer(), text);
  return 0;
}
