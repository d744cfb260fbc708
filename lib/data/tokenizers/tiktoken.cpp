// Files of ranks (openai/tiktoken, tiktoken/load.py) become a tokenizer.json: a token's rank is its
// id, and two tokens merge where their bytes together are a token, whose rank is the merge's. A
// file has at most 64 MiB, a token 1,024 bytes.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/text.h"
#include "data/tokenizers/byte_level_file.h"
#include "data/tokenizers/registry.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostRankBytes = 64U << 20;
constexpr size_t kMostTokenBytes = 1024;  // merges of a token take time in proportion to its square

const RankPattern& pattern_of(const TokenizerProbe& probe) {
  const std::string file = probe.path.filename().string();
  for (const RankPattern& pattern : rank_patterns()) {
    const auto& names = pattern.file_names;
    const bool is_file = std::find(names.begin(), names.end(), file) != names.end();
    if (probe.pattern.empty() ? is_file : probe.pattern == pattern.name) return pattern;
  }
  throw DataError(probe.pattern.empty()
                      ? fmt::format("{}: the name does not say which pattern splits the text; name "
                                    "it: {}#PATTERN (expected {})",
                                    probe.path.string(), probe.path.string(), rank_pattern_names())
                      : fmt::format("{}: unknown pattern '{}' (expected {})", probe.path.string(),
                                    probe.pattern, rank_pattern_names()));
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>((bits >> held) & 0xFF);
    }
  }
  return bytes;
}

/// A line "BASE64 RANK"; nothing where it is not one.
std::optional<std::pair<std::string, int32_t>> read_rank(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return std::nullopt;
  auto bytes = from_base64(line.substr(0, space));
  const std::optional<int32_t> rank = whole_number<int32_t>(line.substr(space + 1));
  if (!bytes || bytes->empty() || !rank) return std::nullopt;
  return std::pair(std::move(*bytes), *rank);
}

using Ranks = std::vector<std::pair<std::string, int32_t>>;

Ranks read_ranks(const std::string& text, const std::string& where) {
  Ranks ranks;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end > begin) {
      auto rank = read_rank(std::string_view(text).substr(begin, end - begin));
      if (!rank) {
        throw DataError(fmt::format("{}:{}: not a token in base64 and its rank", where, number));
      }
      if (rank->first.size() > kMostTokenBytes) {
        throw DataError(fmt::format("{}:{}: a token of {} bytes; at most {} are read", where,
                                    number, rank->first.size(), kMostTokenBytes));
      }
      ranks.push_back(std::move(*rank));
    }
    begin = end + 1;
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  return ranks;
}

ByteLevelFile file_of(Ranks ranks, const RankPattern& pattern) {
  ByteLevelFile file;
  file.expression = pattern.expression;
  file.specials = pattern.specials;
  file.ignore_merges = true;
  std::unordered_map<std::string_view, int32_t> rank_of;
  for (const auto& [bytes, rank] : ranks) rank_of.emplace(bytes, rank);
  for (const auto& [bytes, rank] : ranks) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const std::string_view left = std::string_view(bytes).substr(0, cut);
      const std::string_view right = std::string_view(bytes).substr(cut);
      if (rank_of.contains(left) && rank_of.contains(right)) file.merges.emplace_back(left, right);
    }
  }
  file.tokens = std::move(ranks);
  return file;
}

}  // namespace

bool is_tiktoken(const TokenizerProbe& probe) {
  const std::string extension = probe.path.extension().string();
  const std::string_view line = std::string_view(probe.head).substr(0, probe.head.find('\n'));
  return (extension == ".tiktoken" || extension == ".model") && read_rank(line).has_value();
}

std::unique_ptr<Tokenizer> open_tiktoken(const TokenizerProbe& probe) {
  const RankPattern& pattern = pattern_of(probe);
  const std::string where = probe.path.string();
  Ranks ranks = read_ranks(read_text_file(probe.path, kMostRankBytes), where);
  return tokenizer_from_json(byte_level_json(file_of(std::move(ranks), pattern)), where);
}

}  // namespace fp8train::tokenizers
