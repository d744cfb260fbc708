// Schedules of pipelines as text.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "parallel/pipeline_schedule.h"

namespace fp8train {
namespace {

constexpr std::string_view kLetters = "FBW";  // of ActionKind

/// The beginning of a text of any bytes, for a message.
std::string shown(std::string_view text) {
  constexpr size_t kShown = 40;
  std::string beginning(text.substr(0, kShown));
  std::ranges::replace_if(
      beginning, [](char c) { return c < ' ' || c > '~'; }, '?');
  return beginning + (text.size() > kShown ? ".." : "");
}

std::optional<PipelineAction> read_action(const std::string& word) {
  const size_t kind = kLetters.find(word.front());
  const std::vector<std::string> numbers = split(std::string_view(word).substr(1), '.');
  const auto micro_batch = whole_number<int64_t>(numbers.front());
  const auto chunk = numbers.size() == 2 ? whole_number<int>(numbers.back()) : std::optional(0);
  if (kind == std::string::npos || !micro_batch || !chunk || numbers.size() > 2) {
    return std::nullopt;
  }
  return PipelineAction{static_cast<ActionKind>(kind), *chunk, *micro_batch};
}

}  // namespace

std::string text_of(const PipelineAction& action) {
  const char letter = kLetters[static_cast<size_t>(action.kind)];
  return action.chunk == 0 ? fmt::format("{}{}", letter, action.micro_batch)
                           : fmt::format("{}{}.{}", letter, action.micro_batch, action.chunk);
}

std::string text_of(const PipelineSchedule& schedule) {
  std::string text;
  for (size_t stage = 0; stage < schedule.of_stage.size(); ++stage) {
    text += fmt::format("stage {}:", stage);
    for (const PipelineAction& action : schedule.of_stage[stage]) {
      text += ' ' + text_of(action);
    }
    text += '\n';
  }
  return text;
}

PipelineSchedule read_schedule(std::string_view text) {
  PipelineSchedule schedule;
  size_t number = 0;
  for (const std::string& whole : split(text, '\n')) {
    ++number;
    const std::string line = trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) {
      continue;
    }
    const size_t stage = schedule.of_stage.size();
    const std::string start = fmt::format("stage {}:", stage);
    if (!line.starts_with(start)) {
      throw ConfigError(
          fmt::format("line {}: \"{}\" does not begin with \"{}\"", number, shown(line), start));
    }
    std::vector<PipelineAction>& actions = schedule.of_stage.emplace_back();
    schedule.lines.push_back(number);
    std::istringstream words(line.substr(start.size()));
    for (std::string word; words >> word;) {
      const std::optional<PipelineAction> action = read_action(word);
      if (!action) {
        throw ConfigError(
            fmt::format("line {}, stage {}: \"{}\" is no action like F3, B3, W3 or F3.1", number,
                        stage, shown(word)));
      }
      actions.push_back(*action);
    }
  }
  return schedule;
}

}  // namespace fp8train
