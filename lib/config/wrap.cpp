#include "config/wrap.h"

#include <algorithm>
#include <sstream>

namespace fp8train {

std::string wrapped(const std::string& text, size_t columns) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    const size_t start = std::min(line.find_first_not_of(" #"), line.size());
    const std::string begin = line.substr(0, start);
    std::istringstream words(line.substr(start));
    std::string current = begin;
    for (std::string word; words >> word;) {
      const bool first = current.size() == begin.size();
      if (!first && current.size() + 1 + word.size() > columns) {
        result += current + "\n";
        current = begin + word;
      } else {
        current += (first ? "" : " ") + word;
      }
    }
    result += current + "\n";
  }
  return result;
}

}  // namespace fp8train
