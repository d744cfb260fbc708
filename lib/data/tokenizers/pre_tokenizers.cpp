#include "data/tokenizers/pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "data/tokenizers/metaspace.h"
#include "data/tokenizers/pattern.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

// openai/gpt-2, src/encoder.py.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Patterns in which white space behind something else begins a match, except for line feeds behind
// punctuation, and none looks back: a text may be cut in front of a space behind a letter. A match
// that takes the only line feed in front of a letter ends there, whatever follows: a text may be
// cut in front of the letter.
constexpr std::string_view kCuttable[] = {
    kGpt2Pattern,
    // Llama 3; Qwen 2 with \p{N} alone; Mistral's Tekken and OpenAI's o200k_base
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

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

class PatternSplit final : public PreTokenizer {
 public:
  PatternSplit(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(Piece piece, const PieceSink& sink) const override {
    Splitter pieces(piece, behavior_, sink);
    pattern_.for_each_part(piece.text, [&](size_t begin, size_t end, bool is_match) {
      pieces.add(begin, end, is_match != invert_);
    });
    pieces.finish();
  }

  AtCut at_space() const override { return at_cut(); }
  AtCut at_line() const override { return at_cut(); }

 private:
  AtCut at_cut() const {
    const auto* const end = std::end(kCuttable);
    const bool known = std::find(std::begin(kCuttable), end, pattern_.expression()) != end;
    const bool matches_are_pieces =
        behavior_ == SplitBehavior::isolated || (behavior_ == SplitBehavior::removed && invert_);
    return known && matches_are_pieces ? AtCut::splits : AtCut::unknown;
  }

  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// ByteLevel's own pattern, and the space that it may put in front.
class ByteLevelSplit final : public PreTokenizer {
 public:
  ByteLevelSplit(bool adds_space, bool splits, const std::string& place)
      : adds_space_(adds_space), splits_(splits), pattern_(kGpt2Pattern, place) {}

  void split(Piece piece, const PieceSink& sink) const override {
    std::string with_space;
    if (adds_space_ && piece.text.front() != ' ') {
      with_space.assign(1, ' ').append(piece.text);
      piece.text = with_space;
    }
    if (!splits_) {
      sink(piece);
      return;
    }
    pattern_.for_each_part(piece.text, [&](size_t begin, size_t end, bool /*is_match*/) {
      sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    });
  }
  AtCut at_space() const override { return splits_ ? AtCut::splits : AtCut::is_local; }
  AtCut at_line() const override { return adds_space_ ? AtCut::unknown : at_space(); }

 private:
  bool adds_space_;
  bool splits_;
  Regex pattern_;
};

/// Splits at single code points.
class CharacterSplit final : public PreTokenizer {
 public:
  using Predicate = std::function<bool(char32_t)>;
  CharacterSplit(Predicate matches, SplitBehavior behavior)
      : matches_(std::move(matches)), behavior_(behavior) {}

  void split(Piece piece, const PieceSink& sink) const override {
    Splitter pieces(piece, behavior_, sink);
    size_t begin = 0;
    for (size_t position = 0; position < piece.text.size();) {
      const CodePoint c = code_point_at(piece.text, position);
      if (matches_(c.value)) {
        if (begin < position) pieces.add(begin, position, false);
        begin = position + c.bytes;
        pieces.add(position, begin, true);
      }
      position += c.bytes;
    }
    if (begin < piece.text.size()) pieces.add(begin, piece.text.size(), false);
    pieces.finish();
  }

  AtCut at_space() const override {
    if (!matches_(U' ')) return AtCut::is_local;
    return behavior_ == SplitBehavior::merged_with_previous ? AtCut::unknown : AtCut::splits;
  }
  AtCut at_line() const override {
    if (!matches_(U'\n')) return AtCut::is_local;
    return behavior_ == SplitBehavior::removed ? AtCut::splits : AtCut::unknown;
  }

 private:
  Predicate matches_;
  SplitBehavior behavior_;
};

/// Runs of word characters and runs of what is neither that nor white space.
class WordSplit final : public PreTokenizer {
 public:
  void split(Piece piece, const PieceSink& sink) const override {
    enum class Kind : uint8_t { space, word, other };
    size_t begin = 0;
    Kind kind = Kind::space;
    const auto end_run = [&](size_t end) {
      if (kind != Kind::space && end > begin) {
        sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
      }
    };
    for (size_t position = 0; position < piece.text.size();) {
      const CodePoint c = code_point_at(piece.text, position);
      const Kind found = is_word(c.value)          ? Kind::word
                         : is_white_space(c.value) ? Kind::space
                                                   : Kind::other;
      if (found != kind) {
        end_run(position);
        begin = position;
        kind = found;
      }
      position += c.bytes;
    }
    end_run(piece.text.size());
  }
  AtCut at_space() const override { return AtCut::splits; }
  AtCut at_line() const override { return AtCut::splits; }
};

class MetaspaceSplit final : public PreTokenizer {
 public:
  explicit MetaspaceSplit(Metaspace settings) : settings_(std::move(settings)) {}

  void split(Piece piece, const PieceSink& sink) const override {
    const std::string& mark = settings_.replacement;
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += mark;
      } else {
        text += c;
      }
    }
    const bool wanted = settings_.prepend == Metaspace::Prepend::always ||
                        (settings_.prepend == Metaspace::Prepend::first && piece.at_start);
    if (wanted && !text.starts_with(mark)) text.insert(0, mark);
    const std::string_view whole = text;
    size_t begin = 0;
    size_t end = settings_.splits ? whole.find(mark, 1) : std::string_view::npos;
    for (; end != std::string_view::npos; end = whole.find(mark, begin + 1)) {
      sink({whole.substr(begin, end - begin), piece.at_start && begin == 0});
      begin = end;
    }
    sink({whole.substr(begin), piece.at_start && begin == 0});
  }
  AtCut at_space() const override { return settings_.splits ? AtCut::splits : AtCut::unknown; }

 private:
  Metaspace settings_;
};

using Made = std::unique_ptr<PreTokenizer>;

Made characters(CharacterSplit::Predicate matches, SplitBehavior behavior) {
  return std::make_unique<CharacterSplit>(std::move(matches), behavior);
}

Made read_split(const JsonPart& part) {
  part.only({"pattern", "behavior", "invert"});
  return std::make_unique<PatternSplit>(Pattern(part.at("pattern")),
                                        read_behavior(part, SplitBehavior::removed),
                                        part.flag_or("invert", false));
}

Made read_digits(const JsonPart& part) {
  part.only({"individual_digits"});
  return characters(is_number, part.flag_or("individual_digits", false)
                                   ? SplitBehavior::isolated
                                   : SplitBehavior::contiguous);
}

Made read_delimiter(const JsonPart& part) {
  part.only({"delimiter"});
  const std::string delimiter = part.text("delimiter");
  if (delimiter.empty() || code_point_at(delimiter, 0).bytes != delimiter.size()) {
    part.refuse("the delimiter is not one character");
  }
  const char32_t wanted = code_point_at(delimiter, 0).value;
  return characters([wanted](char32_t c) { return c == wanted; }, SplitBehavior::removed);
}

struct PreTokenizerKind {
  std::string_view type;
  Made (*read)(const JsonPart& part);
};

constexpr std::string_view kPreTokenizers =
    "ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, Punctuation, Digits, "
    "CharDelimiterSplit, BertPreTokenizer, Sequence";

const PreTokenizerKind kPreTokenizerKinds[] = {
    {"Split", read_split},
    {"Digits", read_digits},
    {"CharDelimiterSplit", read_delimiter},
    {"Metaspace",
     [](const JsonPart& part) -> Made {
       return std::make_unique<MetaspaceSplit>(read_metaspace(part));
     }},
    {"Whitespace",
     [](const JsonPart& part) -> Made {
       part.only({});
       return std::make_unique<WordSplit>();
     }},
    {"WhitespaceSplit",
     [](const JsonPart& part) -> Made {
       part.only({});
       return characters(is_white_space, SplitBehavior::removed);
     }},
    {"Punctuation", [](const JsonPart& part) -> Made {
       part.only({"behavior"});
       return characters(is_punctuation, read_behavior(part, SplitBehavior::isolated));
     }}};

}  // namespace

PreTokenizers::PreTokenizers(const JsonPart& part) {
  add(part);
}

void PreTokenizers::add(const JsonPart& part) {
  const std::string type = part.type();
  if (byte_level_) {
    part.refuse("a pre-tokenizer behind ByteLevel is not supported");
  }
  if (type == "Sequence") {
    part.only({"pretokenizers"});
    const JsonPart list = part.at("pretokenizers");
    for (size_t i = 0; i < list.size(); ++i) add(list.at(i));
    return;
  }
  if (type == "ByteLevel") {
    part.only({"add_prefix_space", "trim_offsets", "use_regex"});
    byte_level_ = true;
    const bool adds_space = part.flag_or("add_prefix_space", true);
    const bool splits = part.flag_or("use_regex", true);
    if (adds_space || splits) {
      stages_.push_back(std::make_unique<ByteLevelSplit>(adds_space, splits, part.place()));
    }
    return;
  }
  if (type == "BertPreTokenizer") {
    part.only({});
    stages_.push_back(characters(is_white_space, SplitBehavior::removed));
    stages_.push_back(characters(is_punctuation, SplitBehavior::isolated));
    return;
  }
  for (const PreTokenizerKind& kind : kPreTokenizerKinds) {
    if (kind.type == type) {
      stages_.push_back(kind.read(part));
      return;
    }
  }
  refuse_type(part, "pre-tokenizers", kPreTokenizers);
}

bool PreTokenizers::works_at(AtCut (PreTokenizer::*cut)() const) const {
  for (const auto& stage : stages_) {
    const AtCut what = ((*stage).*cut)();
    if (what != AtCut::is_local) return what == AtCut::splits;
  }
  return false;
}

void PreTokenizers::run(size_t stage, Piece piece, const PieceSink& sink) const {
  if (stage == stages_.size()) {
    sink(piece);
  } else if (stage + 1 == stages_.size()) {
    stages_[stage]->split(piece, sink);
  } else {
    stages_[stage]->split(piece, [&](Piece part) { run(stage + 1, part, sink); });
  }
}

}  // namespace fp8train::tokenizers
