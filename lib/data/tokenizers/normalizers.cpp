#include "data/tokenizers/normalizers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "data/tokenizers/pattern.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

template <NormalForm form>
Normalizer read_form(const JsonPart& part) {
  part.only({});
  return {[](std::string& text) { normalize(text, form); }, true};
}

Normalizer read_lowercase(const JsonPart& /*part*/) {
  return {[](std::string& text) { text = lower_case(text); }, true};
}

Normalizer read_prepend(const JsonPart& part) {
  part.only({"prepend"});
  return {[prefix = part.text("prepend")](std::string& text) {
    if (!text.empty()) text.insert(0, prefix);
  }};
}

Normalizer read_replace_normalizer(const JsonPart& part) {
  part.only({"pattern", "content"});
  return {[pattern = Pattern(part.at("pattern")), content = part.text("content")](
              std::string& text) { text = pattern.replaced(text, content); }};
}

Normalizer read_strip_normalizer(const JsonPart& part) {
  part.only({"strip_left", "strip_right"});
  return {[left = part.flag_or("strip_left", true),
           right = part.flag_or("strip_right", true)](std::string& text) {
    if (right) text.resize(without_spaces_at_end(text));
    if (left) text.erase(0, spaces_at_start(text));
  }};
}

void remove_characters(std::string& text, bool (*is_removed)(char32_t)) {
  std::string result;
  for_each_code_point(text, [&](CodePoint c, size_t position) {
    if (!is_removed(c.value)) result.append(text, position, c.bytes);
  });
  text = std::move(result);
}

Normalizer read_strip_accents(const JsonPart& /*part*/) {
  return {[](std::string& text) { remove_characters(text, is_mark); }, true};
}

bool is_ideograph(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

/// BERT's: control characters go, white space becomes a space, ideographs become words of their
/// own.
struct BertSteps {
  bool clean, ideographs, accents, lower;

  void operator()(std::string& text) const {
    std::string result;
    for_each_code_point(text, [&](CodePoint c, size_t position) {
      add(result, c.value, std::string_view(text).substr(position, c.bytes));
    });
    if (accents) {
      normalize(result, NormalForm::nfd);
      remove_characters(result, is_nonspacing_mark);
    }
    text = lower ? lower_case(result) : std::move(result);
  }

  void add(std::string& result, char32_t c, std::string_view bytes) const {
    const bool tab_or_line = c == '\t' || c == '\n' || c == '\r';
    if (clean && (c == 0 || c == 0xFFFD || (is_control(c) && !tab_or_line))) return;
    const bool alone = ideographs && is_ideograph(c);
    if (alone) result += ' ';
    result += clean && is_white_space(c) ? std::string_view(" ") : bytes;
    if (alone) result += ' ';
  }
};

Normalizer read_bert(const JsonPart& part) {
  part.only({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lower = part.flag_or("lowercase", true);
  return {BertSteps{part.flag_or("clean_text", true), part.flag_or("handle_chinese_chars", true),
                    part.flag_or("strip_accents", lower), lower}};
}

Normalizer read_sequence(const JsonPart& part) {
  part.only({"normalizers"});
  const std::vector<Normalizer> steps = part.list("normalizers", read_normalizer);
  const bool in_parts = std::all_of(steps.begin(), steps.end(),
                                    [](const Normalizer& step) { return step.works_in_parts; });
  return {[steps](std::string& text) {
            for (const Normalizer& step : steps) step.apply(text);
          },
          in_parts};
}

constexpr PartKind<Normalizer(const JsonPart&)> kNormalizers[] = {
    {"NFC", read_form<NormalForm::nfc>},
    {"NFD", read_form<NormalForm::nfd>},
    {"NFKC", read_form<NormalForm::nfkc>},
    {"NFKD", read_form<NormalForm::nfkd>},
    {"Lowercase", read_lowercase},
    {"Prepend", read_prepend},
    {"Replace", read_replace_normalizer},
    {"Strip", read_strip_normalizer},
    {"StripAccents", read_strip_accents},
    {"BertNormalizer", read_bert},
    {"Sequence", read_sequence}};

}  // namespace

Normalizer read_normalizer(const JsonPart& part) {
  return kind_of(part, "normalizers", kNormalizers).read(part);
}

}  // namespace fp8train::tokenizers
