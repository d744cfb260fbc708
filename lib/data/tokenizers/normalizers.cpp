#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "data/tokenizers/regex.h"
#include "data/tokenizers/text_parts.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::tokenizers {
namespace {

constexpr size_t kMostSteps = 256;
constexpr size_t kMostGrowth = 64;
constexpr size_t kMostAdded = 65536;

/// One change. Throws DataError rather than make a text longer than `most` bytes.
struct Step {
  std::function<void(std::string& text, size_t most)> apply;
  bool works_in_parts = false;
};

using Steps = std::vector<Step>;

template <NormalForm form>
Step read_form(const JsonPart& part) {
  part.only({});
  return {[](std::string& text, size_t /*most*/) { normalize(text, form); }, true};
}

Step read_lowercase(const JsonPart& /*part*/) {
  return {[](std::string& text, size_t /*most*/) { text = lower_case(text); }, true};
}

Step read_prepend(const JsonPart& part) {
  part.only({"prepend"});
  return {[prefix = part.text("prepend")](std::string& text, size_t /*most*/) {
    if (!text.empty()) text.insert(0, prefix);
  }};
}

Step read_replace_normalizer(const JsonPart& part) {
  part.only({"pattern", "content"});
  return {
      [pattern = Pattern(part.at("pattern")), content = part.text("content"), where = part.where()](
          std::string& text, size_t most) { text = pattern.replaced(text, content, most, where); }};
}

Step read_strip_normalizer(const JsonPart& part) {
  part.only({"strip_left", "strip_right"});
  return {[left = part.flag_or("strip_left", true), right = part.flag_or("strip_right", true)](
              std::string& text, size_t /*most*/) {
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

Step read_strip_accents(const JsonPart& /*part*/) {
  return {[](std::string& text, size_t /*most*/) { remove_characters(text, is_mark); }, true};
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

  void operator()(std::string& text, size_t /*most*/) const {
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

Step read_bert(const JsonPart& part) {
  part.only({"clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  const bool lower = part.flag_or("lowercase", true);
  return {BertSteps{part.flag_or("clean_text", true), part.flag_or("handle_chinese_chars", true),
                    part.flag_or("strip_accents", lower), lower}};
}

/// One step.
template <Step (*read)(const JsonPart&)>
void add_one(const JsonPart& part, Steps& steps) {
  if (steps.size() == kMostSteps) part.refuse(fmt::format("more than {} normalizers", kMostSteps));
  steps.push_back(read(part));
}

void add_steps(const JsonPart& part, Steps& steps);

void add_sequence(const JsonPart& part, Steps& steps) {
  part.only({"normalizers"});
  const JsonPart list = part.at("normalizers");
  for (size_t i = 0; i < list.size(); ++i) add_steps(list.at(i), steps);
}

constexpr PartKind<void(const JsonPart&, Steps&)> kNormalizers[] = {
    {"NFC", add_one<read_form<NormalForm::nfc>>},
    {"NFD", add_one<read_form<NormalForm::nfd>>},
    {"NFKC", add_one<read_form<NormalForm::nfkc>>},
    {"NFKD", add_one<read_form<NormalForm::nfkd>>},
    {"Lowercase", add_one<read_lowercase>},
    {"Prepend", add_one<read_prepend>},
    {"Replace", add_one<read_replace_normalizer>},
    {"Strip", add_one<read_strip_normalizer>},
    {"StripAccents", add_one<read_strip_accents>},
    {"BertNormalizer", add_one<read_bert>},
    {"Sequence", add_sequence}};

void add_steps(const JsonPart& part, Steps& steps) {
  kind_of(part, "normalizers", kNormalizers).read(part, steps);
}

}  // namespace

Normalizer read_normalizer(const JsonPart& part) {
  Steps steps;
  add_steps(part, steps);
  const bool in_parts =
      std::all_of(steps.begin(), steps.end(), [](const Step& step) { return step.works_in_parts; });
  return {[steps, where = part.where()](std::string& text) {
            const size_t most = kMostGrowth * text.size() + kMostAdded;
            for (const Step& step : steps) {
              step.apply(text, most);
              if (text.size() > most) refuse_growth(where, most);
            }
          },
          in_parts};
}

}  // namespace fp8train::tokenizers
