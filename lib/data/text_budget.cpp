#include "data/text_budget.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/machine.h"

namespace fp8train {
namespace {

constexpr uint64_t kMostExpansion = 200;
constexpr uint64_t kSmallText = 1ULL << 30;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw DataError(fmt::format(
      "{}: {}; `fp8train data prepare` reads files of any length and writes token files, which "
      "need no memory",
      where, what));
}

}  // namespace

TextBudget::TextBudget() : most_(available_memory() / 2) {}

void TextBudget::add(uint64_t bytes, const std::string& where, uint64_t file_bytes) {
  held_ += bytes;
  if (held_ > most_) {
    refuse(where, fmt::format("the text is held in memory and is longer than {} MiB, half of what "
                              "is available",
                              most_ >> 20));
  }
  if (file_bytes > 0 && held_ > kSmallText && held_ / kMostExpansion > file_bytes) {
    refuse(where, fmt::format("the file holds more than {} times its length: {} MiB of text so far "
                              "in {} bytes",
                              kMostExpansion, held_ >> 20, file_bytes));
  }
}

}  // namespace fp8train
