#include "data/choice_questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

using nlohmann::json;
using Keys = std::array<const char*, 2>;

constexpr Keys kContext = {"context", "query"};
constexpr Keys kGold = {"gold", "label"};

class QuestionReader {
 public:
  QuestionReader(std::string_view line, std::string where)
      : object_(parse_json_line(line, where)), where_(std::move(where)) {
    if (!object_.is_object()) {
      fail(fmt::format("the line is not a JSON object but {}", object_.type_name()));
    }
  }

  ChoiceQuestion read() const {
    ChoiceQuestion question;
    question.where = where_;
    question.context = text(find(kContext), kContext[0]);
    const json& choices = find({"choices", "choices"});
    if (!choices.is_array() || choices.size() < 2) {
      fail("'choices' is not a list of two texts or more");
    }
    for (const json& choice : choices) {
      question.choices.push_back(text(choice, "choices"));
      if (question.choices.back().empty()) fail("an empty text in 'choices'");
    }
    const std::optional<size_t> gold = index(find(kGold));
    if (!gold || *gold >= question.choices.size()) {
      fail(fmt::format("'gold' is {}; expected the number of a choice, 0 to {}", find(kGold).dump(),
                       question.choices.size() - 1));
    }
    question.gold = *gold;
    return question;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", where_, what));
  }

  const json& find(const Keys& keys) const {
    for (const char* key : keys) {
      if (const auto value = object_.find(key); value != object_.end()) return *value;
    }
    std::string present;
    for (const auto& [key, ignored] : object_.items()) {
      present += (present.empty() ? "" : ", ") + key;
    }
    fail(
        fmt::format("no key '{}' (keys here: {}); a line has context or query, choices, and gold "
                    "or label",
                    keys[0], present));
  }

  std::string text(const json& value, const char* key) const {
    if (!value.is_string()) {
      fail(fmt::format("'{}' is not a string but {}", key, value.type_name()));
    }
    return value.get<std::string>();
  }

  static std::optional<size_t> index(const json& value) {
    if (value.is_number_unsigned()) return value.get<size_t>();
    if (!value.is_string()) return std::nullopt;
    const auto digits = value.get<std::string>();
    size_t number = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, number);
    return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
  }

  json object_;
  std::string where_;
};

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path) {
  std::vector<ChoiceQuestion> questions;
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    questions.push_back(QuestionReader(line, where).read());
  });
  if (questions.empty()) {
    throw DataError(fmt::format("{}: holds no questions", path.string()));
  }
  return questions;
}

}  // namespace fp8train
