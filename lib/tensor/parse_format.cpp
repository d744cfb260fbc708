// From the spelling of `explain` to a TensorFormat.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/names.h"
#include "base/nearest.h"
#include "base/text.h"
#include "tensor/tensor_format.h"

namespace fp8train {
namespace {

constexpr int kMaxCount = 1'000'000;  // of a group, a history, an interval
constexpr int kMaxMargin = 64;

/// "delayed(16, max)": a word and the text in its parentheses.
struct Word {
  std::string name;
  std::vector<std::string> arguments;
  bool has_arguments = false;
};

template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional(value) : std::nullopt;
}

class FormatParser {
 public:
  explicit FormatParser(std::string_view text) : text_(text) {}

  TensorFormat parse() {
    split();
    if (words_.empty()) {
      fail("no element type; it comes first, such as bf16 or e4m3");
    }
    read_element(words_.front());
    for (size_t i = 1; i < words_.size(); ++i) {
      if (words_[i].name == "epsilon" && i + 1 < words_.size()) {
        read_epsilon(words_[++i].name);
      } else {
        read_word(words_[i]);
      }
    }
    complete_format();
    return format_;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw ConfigError(fmt::format("'{}': {}", text_, why));
  }

  void split() {
    size_t at = 0;
    while ((at = text_.find_first_not_of(" \t", at)) != std::string::npos) {
      const size_t end = std::min(text_.find_first_of(" \t(", at), text_.size());
      Word word = {text_.substr(at, end - at), {}, false};
      at = end;
      if (at < text_.size() && text_[at] == '(') {
        const size_t close = text_.find(')', at);
        if (close == std::string::npos) {
          fail(fmt::format("the parenthesis after '{}' is not closed", word.name));
        }
        split_arguments(text_.substr(at + 1, close - at - 1), word);
        at = close + 1;
      }
      words_.push_back(std::move(word));
    }
  }

  static void split_arguments(const std::string& inside, Word& word) {
    word.has_arguments = true;
    for (const std::string& argument : fp8train::split(inside, ',')) {
      word.arguments.push_back(trimmed(argument));
    }
  }

  /// An unknown word, with the nearest known one or all of them.
  [[noreturn]] void unknown(const char* what, const std::string& name,
                            const std::vector<std::string>& known) const {
    const std::string near = nearest_name(name, known);
    const std::string hint = near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
    fail(fmt::format("unknown {} '{}'{} (expected one of: {})", what, name, hint,
                     fmt::join(known, ", ")));
  }

  void read_element(const Word& word) {
    const std::vector<std::string> known = format_elements();
    if (word.has_arguments || std::find(known.begin(), known.end(), word.name) == known.end()) {
      unknown("element type", word.name, known);
    }
    format_.dtype = std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& facts) {
                      return facts.name == word.name;
                    })->type;
  }

  void once(bool& seen, const Word& word, const char* what) const {
    if (seen) {
      fail(fmt::format("'{}' is a second {}", word.name, what));
    }
    seen = true;
  }

  void no_arguments(const Word& word) const {
    if (word.has_arguments) {
      fail(fmt::format("'{}' takes nothing in parentheses", word.name));
    }
  }

  int count(const std::string& text, int least, int most, const char* what) const {
    const std::optional<int> value = number_in<int>(text);
    if (!value || *value < least || *value > most) {
      fail(fmt::format("{} is a whole number in [{}, {}], got '{}'", what, least, most, text));
    }
    return *value;
  }

  void read_word(const Word& word) {
    if (read_block(word) || read_policy(word)) {
      return;
    }
    const auto* const scales = std::ranges::find(kScaleTypeFacts, word.name, &ScaleTypeFacts::name);
    if (scales != std::end(kScaleTypeFacts) && scales->type != ScaleType::f32) {
      once(has_scale_type_, word, "type of scale");
      format_.scale_type = scales->type;
    } else if (word.name == "hadamard") {
      once(format_.hadamard, word, "transform");
    } else if (word.name == "row_scaled") {
      format_.row_scaled = true;
    } else if (word.name == "stochastic") {
      format_.rounding = Rounding::stochastic;
    } else if (word.name == "expanded") {
      format_.expanded = true;
    } else if (word.name == "remainder") {
      format_.remainder = true;
    } else {
      std::vector<std::string> known = format_blocks();
      known.insert(known.end(), {"expanded", "current", "delayed(1024, max)", "static(1)", "auto"});
      const std::vector<std::string> types = format_scale_types();
      known.insert(known.end(), types.begin(), types.end());
      known.insert(known.end(),
                   {"epsilon 1e-12", "row_scaled", "hadamard", "stochastic", "remainder"});
      unknown("word", word.name, known);
    }
    no_arguments(word);
  }

  /// tensor, row, group(128) or two numbers, 1x128.
  std::optional<ScaleBlock> block_of(const Word& word) const {
    if (word.name == "tensor" || word.name == "row") {
      return word.name == "row" ? per::row : per::tensor;
    }
    if (word.name == "group") {
      if (word.arguments.size() != 1) {
        fail("group needs its size: group(128)");
      }
      return per::group(count(word.arguments[0], 1, kMaxCount, "the size of a group"));
    }
    const size_t cross = word.name.find('x');
    if (cross == std::string::npos) {
      return std::nullopt;
    }
    const auto rows = number_in<int32_t>(std::string_view(word.name).substr(0, cross));
    const auto columns = number_in<int32_t>(std::string_view(word.name).substr(cross + 1));
    const auto is_extent = [](const std::optional<int32_t>& extent) {
      return extent && *extent >= 1 && *extent <= kMaxCount;
    };
    return is_extent(rows) && is_extent(columns) ? std::optional(ScaleBlock{*rows, *columns})
                                                 : std::nullopt;
  }

  bool read_block(const Word& word) {
    const std::optional<ScaleBlock> block = block_of(word);
    if (!block) {
      return false;
    }
    if (!block->is_group()) {
      no_arguments(word);
    }
    once(has_block_, word, "block that shares a scale");
    format_.block = *block;
    return true;
  }

  bool read_policy(const Word& word) {
    const std::optional<ScalePolicy> policy = value_in(kScalePolicies, word.name);
    if (!policy || *policy == ScalePolicy::none) {
      return false;
    }
    format_.policy = *policy;
    switch (*policy) {
      case ScalePolicy::none:
      case ScalePolicy::current:
      case ScalePolicy::automatic:
        no_arguments(word);
        break;
      case ScalePolicy::fixed:
        read_fixed(word);
        break;
      case ScalePolicy::delayed:
        read_delayed(word);
        break;
    }
    once(has_policy_, word, "rule of scaling");
    return true;
  }

  void read_fixed(const Word& word) {
    const auto scale = number_in<float>(word.arguments.empty() ? "" : word.arguments[0]);
    if (word.arguments.size() != 1 || !scale || !std::isfinite(*scale) || *scale <= 0) {
      fail("static needs its scale: static(1)");
    }
    format_.fixed_scale = *scale;
  }

  void read_delayed(const Word& word) {
    DelayedScaling& rule = format_.delayed;
    for (size_t i = 0; i < word.arguments.size(); ++i) {
      const std::string& text = word.arguments[i];
      if (i == 0) {
        rule.history_length = count(text, 1, kMaxCount, "the length of a history");
      } else if (const auto algorithm = value_in(kAmaxAlgorithms, text)) {
        rule.algorithm = *algorithm;
      } else if (text.starts_with("margin ")) {
        rule.margin = count(trimmed(text.substr(7)), 0, kMaxMargin, "a margin");
      } else if (text.starts_with("every ")) {
        rule.interval = count(trimmed(text.substr(6)), 1, kMaxCount, "an interval");
      } else if (text == "current at first") {
        rule.current_at_first = true;
      } else if (text == "per step") {
        rule.unit = WindowUnit::step;
      } else if (text == "each rank") {
        rule.reduction = AmaxReduction::none;
      } else {
        unknown("part of delayed(...)", text,
                {"max", "most_recent", "margin 1", "current at first", "per step", "each rank",
                 "every 2"});
      }
    }
  }

  void read_epsilon(const std::string& text) {
    const std::optional<float> value = number_in<float>(text);
    if (!value || !(*value > 0) || !std::isfinite(*value)) {
      fail(fmt::format("epsilon is a number > 0, got '{}'", text));
    }
    format_.amax_epsilon = *value;
  }

  void complete_format() {
    const bool scaled = has_block_ || has_policy_ || has_scale_type_ || format_.expanded ||
                        format_.amax_epsilon > 0;
    if (format_.remainder) {
      if (scaled || format_.dtype != DType::bf16 || format_.rounding != Rounding::nearest_even) {
        fail("remainder belongs to bf16 alone: bf16 remainder");
      }
      format_ = master_halves();
    }
    if (scaled && !has_policy_) {
      format_.policy = ScalePolicy::current;
    }
    if (format_.expanded && !format_.block.is_group()) {
      fail("expanded belongs to groups: group(128) expanded");
    }
    if ((format_.hadamard || format_.row_scaled) && !facts_of(format_.scale_type).two_level) {
      const char* const word = format_.hadamard ? "hadamard" : "row_scaled";
      fail(fmt::format("{} belongs to e4m3 scales: e2m1 1x16 e4m3 {}", word, word));
    }
    if (format_.amax_epsilon > 0 && format_.policy != ScalePolicy::current) {
      fail("epsilon belongs to current scaling");
    }
    const bool by_scale =
        format_.scale_type == ScaleType::f32 || format_.scale_type == ScaleType::pow2;
    if (format_.amax_epsilon > 0 && !by_scale) {
      fail("epsilon belongs to fp32 and pow2 scales");
    }
  }

  std::string text_;
  std::vector<Word> words_;
  TensorFormat format_;
  bool has_block_ = false, has_policy_ = false, has_scale_type_ = false;
};

}  // namespace

TensorFormat parse_format(std::string_view text) {
  return FormatParser(text).parse();
}

}  // namespace fp8train
