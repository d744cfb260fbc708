#include "data/choice_questions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

/// A whole number, which may be written as a text.
std::optional<size_t> index_in(const nlohmann::json& value) {
  if (value.is_number_unsigned()) return value.get<size_t>();
  if (!value.is_string()) return std::nullopt;
  return whole_number<size_t>(value.get<std::string>());
}

ChoiceQuestion read_choice_question(const JsonRecord& record) {
  const auto find = [&](std::initializer_list<std::string_view> keys) -> const nlohmann::json& {
    return record.at(keys, "a line has context or query, choices, and gold or label");
  };
  ChoiceQuestion question;
  question.where = record.where();
  question.context = record.text(find({"context", "query"}), "context");
  const nlohmann::json& choices = find({"choices"});
  if (!choices.is_array() || choices.size() < 2) {
    record.fail("'choices' is not a list of two texts or more");
  }
  for (const nlohmann::json& choice : choices) {
    question.choices.push_back(record.text(choice, "choices"));
    if (question.choices.back().empty()) record.fail("an empty text in 'choices'");
  }
  const nlohmann::json& answer = find({"gold", "label"});
  const std::optional<size_t> gold = index_in(answer);
  if (!gold || *gold >= question.choices.size()) {
    record.fail(fmt::format("'gold' is {}; expected the number of a choice, 0 to {}", answer.dump(),
                            question.choices.size() - 1));
  }
  question.gold = *gold;
  return question;
}

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path) {
  std::vector<ChoiceQuestion> questions;
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    questions.push_back(read_choice_question(JsonRecord(line, where)));
  });
  if (questions.empty()) {
    throw DataError(fmt::format("{}: holds no questions", path.string()));
  }
  return questions;
}

}  // namespace fp8train
