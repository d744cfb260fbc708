#include "data/tokenizers/normalizers.h"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/pattern.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

class FormNormalizer final : public Normalizer {
 public:
  explicit FormNormalizer(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { normalize(text, form_); }
  bool works_in_parts() const override { return true; }

 private:
  NormalForm form_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override { text = lower_case(text); }
  bool works_in_parts() const override { return true; }
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(std::string& text) const override {
    std::string result;
    result.reserve(text.size());
    pattern_.for_each_part(text, [&](size_t begin, size_t end, bool is_match) {
      result.append(is_match ? std::string_view(content_)
                             : std::string_view(text).substr(begin, end - begin));
    });
    text = std::move(result);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(std::string& text) const override {
    size_t begin = 0;
    size_t last_end = 0;
    bool leading = true;
    for (size_t position = 0; position < text.size();) {
      const CodePoint c = code_point_at(text, position);
      const bool space = is_white_space(c.value);
      if (leading && space) begin = position + c.bytes;
      leading = leading && space;
      position += c.bytes;
      if (!space) last_end = position;
    }
    begin = left_ ? begin : 0;
    const size_t end = right_ ? std::max(begin, last_end) : text.size();
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_;
  bool right_;
};

void remove_characters(std::string& text, bool (*is_removed)(char32_t)) {
  std::string result;
  for (size_t position = 0; position < text.size();) {
    const CodePoint c = code_point_at(text, position);
    if (!is_removed(c.value)) result.append(text, position, c.bytes);
    position += c.bytes;
  }
  text = std::move(result);
}

class StripAccentsNormalizer final : public Normalizer {
 public:
  void apply(std::string& text) const override { remove_characters(text, is_mark); }
  bool works_in_parts() const override { return true; }
};

/// BERT's: control characters go, white space becomes a space, ideographs stand alone.
class BertNormalizer final : public Normalizer {
 public:
  struct Steps {
    bool clean, ideographs, accents, lower;
  };
  explicit BertNormalizer(Steps steps) : steps_(steps) {}

  void apply(std::string& text) const override {
    std::string result;
    for (size_t position = 0; position < text.size();) {
      const CodePoint c = code_point_at(text, position);
      add(result, c.value);
      position += c.bytes;
    }
    if (steps_.accents) {
      normalize(result, NormalForm::nfd);
      remove_characters(result, is_nonspacing_mark);
    }
    text = steps_.lower ? lower_case(result) : std::move(result);
  }

 private:
  void add(std::string& result, char32_t c) const {
    const bool tab_or_line = c == '\t' || c == '\n' || c == '\r';
    if (steps_.clean && (c == 0 || c == 0xFFFD || (is_control(c) && !tab_or_line))) return;
    const char32_t shown = steps_.clean && is_white_space(c) ? U' ' : c;
    const bool alone = steps_.ideographs && is_ideograph(c);
    if (alone) result += ' ';
    append_utf8(result, shown);
    if (alone) result += ' ';
  }

  static bool is_ideograph(char32_t c) {
    constexpr std::pair<char32_t, char32_t> kRanges[] = {
        {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
        {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    for (const auto& [first, last] : kRanges) {
      if (c >= first && c <= last) return true;
    }
    return false;
  }

  Steps steps_;
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }
  bool works_in_parts() const override {
    for (const auto& step : steps_) {
      if (!step->works_in_parts()) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> read_sequence(const JsonPart& part) {
  part.only({"normalizers"});
  const JsonPart list = part.at("normalizers");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(read_normalizer(list.at(i)));
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

std::unique_ptr<Normalizer> read_bert(const JsonPart& part) {
  part.only({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lower = part.flag_or("lowercase", true);
  return std::make_unique<BertNormalizer>(BertNormalizer::Steps{
      part.flag_or("clean_text", true), part.flag_or("handle_chinese_chars", true),
      part.flag_or("strip_accents", lower), lower});
}

template <NormalForm form>
std::unique_ptr<Normalizer> read_form(const JsonPart& part) {
  part.only({});
  return std::make_unique<FormNormalizer>(form);
}

struct NormalizerKind {
  std::string_view type;
  std::unique_ptr<Normalizer> (*read)(const JsonPart& part);
};

constexpr std::string_view kNormalizers =
    "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, BertNormalizer, "
    "Sequence";

const NormalizerKind kNormalizerKinds[] = {
    {"NFC", read_form<NormalForm::nfc>},
    {"NFD", read_form<NormalForm::nfd>},
    {"NFKC", read_form<NormalForm::nfkc>},
    {"NFKD", read_form<NormalForm::nfkd>},
    {"Lowercase",
     [](const JsonPart&) -> std::unique_ptr<Normalizer> {
       return std::make_unique<LowercaseNormalizer>();
     }},
    {"StripAccents",
     [](const JsonPart&) -> std::unique_ptr<Normalizer> {
       return std::make_unique<StripAccentsNormalizer>();
     }},
    {"Prepend",
     [](const JsonPart& part) -> std::unique_ptr<Normalizer> {
       part.only({"prepend"});
       return std::make_unique<PrependNormalizer>(part.text("prepend"));
     }},
    {"Replace",
     [](const JsonPart& part) -> std::unique_ptr<Normalizer> {
       part.only({"pattern", "content"});
       return std::make_unique<ReplaceNormalizer>(Pattern(part.at("pattern")),
                                                  part.text("content"));
     }},
    {"Strip",
     [](const JsonPart& part) -> std::unique_ptr<Normalizer> {
       part.only({"strip_left", "strip_right"});
       return std::make_unique<StripNormalizer>(part.flag_or("strip_left", true),
                                                part.flag_or("strip_right", true));
     }},
    {"BertNormalizer", read_bert},
    {"Sequence", read_sequence}};

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonPart& part) {
  for (const NormalizerKind& kind : kNormalizerKinds) {
    if (kind.type == part.type()) return kind.read(part);
  }
  refuse_type(part, "normalizers", kNormalizers);
}

}  // namespace fp8train::tokenizers
