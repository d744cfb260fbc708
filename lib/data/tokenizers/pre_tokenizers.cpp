#include "data/tokenizers/pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"
#include "data/tokenizers/regex.h"
#include "data/tokenizers/split_patterns.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostStages = 64;  // which are nested in each other when a text is split

enum class SplitBehavior : uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};

SplitBehavior read_behavior(const JsonPart& part, SplitBehavior otherwise) {
  constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::removed},
      {"Isolated", SplitBehavior::isolated},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous}};
  if (!part.has("behavior")) return otherwise;
  const std::string name = part.text("behavior");
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  part.refuse(fmt::format(
      "unknown behavior '{}' (expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous)",
      name));
}

/// Gathers matches and what lies between them into pieces.
class Splitter {
 public:
  Splitter(Piece piece, SplitBehavior behavior, const PieceSink& sink)
      : piece_(piece), behavior_(behavior), sink_(sink) {}

  void add(size_t begin, size_t end, bool is_match) {
    switch (behavior_) {
      case SplitBehavior::isolated:
        emit(begin, end);
        return;
      case SplitBehavior::removed:
        if (!is_match) emit(begin, end);
        return;
      case SplitBehavior::contiguous:
        joins_ = pending() && is_match == was_match_;
        break;
      case SplitBehavior::merged_with_previous:
        joins_ = pending() && is_match && !was_match_;
        break;
      case SplitBehavior::merged_with_next:  // two matches in a row: only the second one joins
        joins_ = pending() && was_match_ && !is_match;
        break;
    }
    if (!joins_) finish();
    begin_ = joins_ ? begin_ : begin;
    end_ = end;
    was_match_ = is_match;
  }

  void finish() {
    if (pending()) emit(begin_, end_);
    end_ = begin_ = 0;
  }

 private:
  bool pending() const { return end_ > begin_; }
  void emit(size_t begin, size_t end) {
    sink_({piece_.text.substr(begin, end - begin), piece_.at_start && begin == 0});
  }

  Piece piece_;
  SplitBehavior behavior_;
  const PieceSink& sink_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool was_match_ = false;
  bool joins_ = false;
};

PreTokenizer read_split(const JsonPart& part) {
  part.only({"pattern", "behavior", "invert"});
  const Pattern pattern(part.at("pattern"));
  const SplitBehavior behavior = read_behavior(part, SplitBehavior::removed);
  const bool invert = part.flag_or("invert", false);
  const bool known = std::find(std::begin(kCuttablePatterns), std::end(kCuttablePatterns),
                               pattern.expression()) != std::end(kCuttablePatterns);
  const bool matches_are_pieces =
      behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert);
  const AtCut at_cut = known && matches_are_pieces ? AtCut::splits : AtCut::unknown;
  return {[pattern, behavior, invert](Piece piece, const PieceSink& sink) {
            Splitter pieces(piece, behavior, sink);
            pattern.for_each_part(piece.text, [&](size_t begin, size_t end, bool is_match) {
              pieces.add(begin, end, is_match != invert);
            });
            pieces.finish();
          },
          at_cut, at_cut};
}

/// The space that ByteLevel may put in front.
PreTokenizer space_in_front() {
  return {[](Piece piece, const PieceSink& sink) {
            if (piece.text.front() == ' ') return sink(piece);
            const std::string with_space = std::string(" ").append(piece.text);
            sink({with_space, piece.at_start});
          },
          AtCut::is_local, AtCut::unknown};
}

/// ByteLevel's own pattern, which leaves nothing between matches.
PreTokenizer gpt2_split(const std::string& where) {
  return {[pattern = Regex(kGpt2Pattern, where)](Piece piece, const PieceSink& sink) {
            pattern.for_each_part(piece.text, [&](size_t begin, size_t end, bool /*is_match*/) {
              sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
            });
          },
          AtCut::splits, AtCut::splits};
}

/// Splits at single code points.
template <typename Matches>
PreTokenizer at_characters(Matches matches, SplitBehavior behavior) {
  const auto split = [matches, behavior](Piece piece, const PieceSink& sink) {
    Splitter pieces(piece, behavior, sink);
    size_t begin = 0;
    for_each_code_point(piece.text, [&](CodePoint c, size_t position) {
      if (!matches(c.value)) return;
      if (begin < position) pieces.add(begin, position, false);
      begin = position + c.bytes;
      pieces.add(position, begin, true);
    });
    if (begin < piece.text.size()) pieces.add(begin, piece.text.size(), false);
    pieces.finish();
  };
  const bool ends_before = behavior != SplitBehavior::merged_with_previous;
  const bool removes = behavior == SplitBehavior::removed;
  return {split,
          !matches(U' ') ? AtCut::is_local
          : ends_before  ? AtCut::splits
                         : AtCut::unknown,
          !matches(U'\n') ? AtCut::is_local
          : removes       ? AtCut::splits
                          : AtCut::unknown};
}

PreTokenizer read_digits(const JsonPart& part) {
  part.only({"individual_digits"});
  return at_characters(is_number, part.flag_or("individual_digits", false)
                                      ? SplitBehavior::isolated
                                      : SplitBehavior::contiguous);
}

PreTokenizer read_delimiter(const JsonPart& part) {
  part.only({"delimiter"});
  const std::string delimiter = part.text("delimiter");
  if (delimiter.empty() || code_point_at(delimiter, 0).bytes != delimiter.size()) {
    part.refuse("the delimiter is not one character");
  }
  const char32_t wanted = code_point_at(delimiter, 0).value;
  return at_characters([wanted](char32_t c) { return c == wanted; }, SplitBehavior::removed);
}

PreTokenizer read_white_space(const JsonPart& part) {
  part.only({});
  return at_characters(is_white_space, SplitBehavior::removed);
}

PreTokenizer read_punctuation(const JsonPart& part) {
  part.only({"behavior"});
  return at_characters(is_punctuation, read_behavior(part, SplitBehavior::isolated));
}

/// Runs of word characters and runs of what is neither that nor white space.
PreTokenizer read_word_runs(const JsonPart& part) {
  part.only({});
  const auto split = [](Piece piece, const PieceSink& sink) {
    enum class Kind : uint8_t { space, word, other };
    size_t begin = 0;
    Kind kind = Kind::space;
    const auto end_run = [&](size_t end) {
      if (kind != Kind::space && end > begin) {
        sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
      }
    };
    for_each_code_point(piece.text, [&](CodePoint c, size_t position) {
      const Kind found = is_word(c.value)          ? Kind::word
                         : is_white_space(c.value) ? Kind::space
                                                   : Kind::other;
      if (found != kind) {
        end_run(position);
        begin = position;
        kind = found;
      }
    });
    end_run(piece.text.size());
  };
  return {split, AtCut::splits, AtCut::splits};
}

PreTokenizer read_metaspace_split(const JsonPart& part) {
  const Metaspace settings = read_metaspace(part);
  const auto split = [settings](Piece piece, const PieceSink& sink) {
    const std::string& mark = settings.replacement;
    std::string text = replaced(piece.text, " ", mark);
    const bool wanted = settings.prepend == Metaspace::Prepend::always ||
                        (settings.prepend == Metaspace::Prepend::first && piece.at_start);
    if (wanted && !text.starts_with(mark)) text.insert(0, mark);
    const std::string_view whole = text;
    size_t begin = 0;
    size_t end = settings.splits ? whole.find(mark, 1) : std::string_view::npos;
    for (; end != std::string_view::npos; end = whole.find(mark, begin + 1)) {
      sink({whole.substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
    sink({whole.substr(begin), piece.at_start && begin == 0});
  };
  return {split, settings.splits ? AtCut::splits : AtCut::unknown};
}

using Stages = std::vector<PreTokenizer>;

/// One stage.
template <PreTokenizer (*read)(const JsonPart&)>
void add_one(const JsonPart& part, Stages& stages) {
  stages.push_back(read(part));
}

void add_byte_level(const JsonPart& part, Stages& stages) {
  part.only({"add_prefix_space", "trim_offsets", "use_regex"});
  if (part.flag_or("add_prefix_space", true)) stages.push_back(space_in_front());
  if (part.flag_or("use_regex", true)) stages.push_back(gpt2_split(part.where()));
}

void add_bert(const JsonPart& part, Stages& stages) {
  stages.push_back(read_white_space(part));
  stages.push_back(at_characters(is_punctuation, SplitBehavior::isolated));
}

constexpr PartKind<void(const JsonPart&, Stages&)> kPreTokenizers[] = {
    {"ByteLevel", add_byte_level},
    {"Split", add_one<read_split>},
    {"Metaspace", add_one<read_metaspace_split>},
    {"Whitespace", add_one<read_word_runs>},
    {"WhitespaceSplit", add_one<read_white_space>},
    {"Punctuation", add_one<read_punctuation>},
    {"Digits", add_one<read_digits>},
    {"CharDelimiterSplit", add_one<read_delimiter>},
    {"BertPreTokenizer", add_bert},
    {"Sequence", nullptr}};  // its parts, one by one

}  // namespace

PreTokenizers::PreTokenizers(const JsonPart& part) {
  add(part);
}

void PreTokenizers::add(const JsonPart& part) {
  if (byte_level_) {
    part.refuse("a pre-tokenizer behind ByteLevel is not supported");
  }
  if (part.type() == "Sequence") {
    part.only({"pretokenizers"});
    const JsonPart list = part.at("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) add(list.at(i));
    return;
  }
  if (stages_.size() >= kMostStages) {
    part.refuse(fmt::format("more than {} pre-tokenizers", kMostStages));
  }
  byte_level_ = part.type() == "ByteLevel";
  kind_of(part, "pre-tokenizers", kPreTokenizers).read(part, stages_);
}

bool PreTokenizers::works_at(AtCut PreTokenizer::*cut) const {
  for (const PreTokenizer& stage : stages_) {
    if (stage.*cut != AtCut::is_local) return stage.*cut == AtCut::splits;
  }
  return false;
}

void PreTokenizers::run(size_t stage, Piece piece, const PieceSink& sink) const {
  if (stage == stages_.size()) {
    sink(piece);
  } else if (stage + 1 == stages_.size()) {
    stages_[stage].split(piece, sink);
  } else {
    stages_[stage].split(piece, [&](Piece part) { run(stage + 1, part, sink); });
  }
}

Metaspace read_metaspace(const JsonPart& part) {
  part.only({"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace settings;
  settings.replacement = part.text_or("replacement", kSpaceMark);
  if (settings.replacement.empty() ||
      code_point_at(settings.replacement, 0).bytes != settings.replacement.size()) {
    part.refuse("the replacement is not one character");
  }
  const std::string scheme =
      part.text_or("prepend_scheme", part.flag_or("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") {
    settings.prepend = Metaspace::Prepend::always;
  } else if (scheme == "first") {
    settings.prepend = Metaspace::Prepend::first;
  } else if (scheme == "never") {
    settings.prepend = Metaspace::Prepend::never;
  } else {
    part.refuse(
        fmt::format("unknown prepend_scheme '{}' (expected always, first or never)", scheme));
  }
  settings.splits = part.flag_or("split", true);
  return settings;
}

}  // namespace fp8train::tokenizers
