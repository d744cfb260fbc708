#include "base/shell_word.h"

#include "base/text.h"

namespace fp8train {

std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyz"
                                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_./-+=:,@%") == std::string::npos;
  return plain ? text : "'" + replaced(text, "'", "'\\''") + "'";
}

}  // namespace fp8train
