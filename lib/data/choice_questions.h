#pragma once
// Multiple-choice questions, as in tasks of lm-evaluation-harness: the model's answer is the
// likeliest continuation.

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace fp8train {

/// A question with several answers, one of which is right.
struct ChoiceQuestion {
  std::string context;
  std::vector<std::string> choices;
  size_t gold = 0;    ///< the right one
  std::string where;  ///< file and line, for messages
};

/// Reads JSON lines with "context" or "query", "choices" (texts), and "gold" or "label": the number
/// of the right choice from 0 on, which may be written as a text. Other keys are not read. Throws
/// DataError with file and line.
std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& path);

}  // namespace fp8train
