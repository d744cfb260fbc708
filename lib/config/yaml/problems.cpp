#include "config/yaml/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr size_t kMaxReported = 50;
constexpr size_t kMaxQuoted = 80;

}  // namespace

size_t Problems::add_source(std::string name, bool has_lines) {
  sources_.push_back({std::move(name), has_lines});
  return sources_.size() - 1;
}

std::string Problems::where(SourceMark mark) const {
  const Source& source = sources_.at(mark.source);
  if (!source.has_lines || mark.line == 0) {
    return source.name;
  }
  return fmt::format("{}:{}:{}", source.name, mark.line, mark.column);
}

void Problems::add(SourceMark mark, const std::string& key, const std::string& text) {
  items_.push_back({mark, key, text});
}

bool Problems::full() const {
  return items_.size() > kMaxReported;
}

void Problems::raise() const {
  if (items_.empty()) {
    return;
  }
  std::vector<Problem> sorted = items_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::tie(a.mark.source, a.mark.line, a.mark.column) <
           std::tie(b.mark.source, b.mark.line, b.mark.column);
  });
  std::string message;
  for (size_t i = 0; i < std::min(sorted.size(), kMaxReported); ++i) {
    const Problem& problem = sorted[i];
    message += fmt::format("{}{}: {}", i == 0 ? "" : "\n", where(problem.mark),
                           with_key(problem.key, problem.text));
  }
  if (sorted.size() > kMaxReported) {
    message += fmt::format("\n... and {} more", sorted.size() - kMaxReported);
  }
  throw ConfigError(message);
}

std::string with_key(const std::string& key, const std::string& text) {
  const bool has_key = text.starts_with(key + ": ") || text.starts_with(key + " ");
  return key.empty() || has_key ? text : fmt::format("{}: {}", key, text);
}

std::string quoted_for_message(const std::string& text) {
  std::string result = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == kMaxQuoted) {
      return result + "...\"";
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += text[i];
    }
  }
  return result + "\"";
}

}  // namespace fp8train
