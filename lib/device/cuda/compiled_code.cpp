#include "device/cuda/compiled_code.h"

#include <cctype>
#include <cstdlib>
#include <string>

namespace fp8train {
namespace {

/// Whether code for one architecture of the list runs on a GPU of this compute capability.
bool runs_on(const std::string& architecture, int capability) {
  char* end = nullptr;
  const int compiled_for = static_cast<int>(std::strtol(architecture.c_str(), &end, 10));
  if (end == architecture.c_str()) {
    return true;
  }
  const std::string_view rest = end;
  if (rest.starts_with("a")) {
    return capability == compiled_for;
  }
  const bool real = rest.find("-virtual") == std::string_view::npos;
  const bool is_virtual = rest.find("-real") == std::string_view::npos && !rest.starts_with("f");
  const bool later = capability >= compiled_for;
  return later && (is_virtual || (real && capability / 10 == compiled_for / 10));
}

}  // namespace

bool has_code_for(std::string_view architectures, int capability) {
  std::string word;
  for (const char c : std::string(architectures) + " ") {
    if (c != ' ' && c != ',' && c != ';') {
      word += c;
      continue;
    }
    if (!word.empty() && runs_on(word, capability)) {
      return true;
    }
    word.clear();
  }
  return false;
}

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace fp8train
