#pragma once
// Texts as words of a shell's command line.

#include <string>

namespace fp8train {

/// Returns `text` as one word of a shell: as it is where it has letters, digits and
/// `_ . / - + = : , @ %` alone, else in quotes.
std::string shell_word(const std::string& text);

}  // namespace fp8train
