// For data that was tokenized elsewhere.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizers/own_format.h"

namespace fp8train {
namespace {

/// The text of a token is its id in decimal.
class IdTokenizer final : public Tokenizer {
 public:
  TokenizerType type() const override { return TokenizerType::none; }
  int64_t vocab_size() const override { return 0; }

  std::vector<int32_t> encode(std::string_view text) const override {
    constexpr std::string_view kBlank = " \t\r\n";
    std::vector<int32_t> ids;
    for (size_t begin = text.find_first_not_of(kBlank); begin != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
      const std::optional<int32_t> id = whole_number<int32_t>(text.substr(begin, end - begin));
      if (!id) {
        throw DataError(
            fmt::format("'{}' at byte {} of the text is not a token id; without a tokenizer a text "
                        "is ids with blanks between them (data.tokenizer: none)",
                        text.substr(begin, std::min<size_t>(end - begin, 20)), begin));
      }
      ids.push_back(*id);
      begin = text.find_first_not_of(kBlank, end);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    return fmt::format("{}", fmt::join(ids, " "));
  }

  std::string to_json() const override { return tokenizers::own_header(type()).dump(2) + "\n"; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_id_tokenizer() {
  return std::make_unique<IdTokenizer>();
}

}  // namespace fp8train
