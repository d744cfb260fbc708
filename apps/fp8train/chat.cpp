#include "chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/screen.h"
#include "data/chat/chat_encoder.h"
#include "data/readers/json_lines.h"
#include "data/utf8.h"
#include "json_text.h"
#include "text_stream.h"

namespace fp8train {
namespace {

/// Writes answers to dialogues.
class Answerer {
 public:
  Answerer(CheckpointModel& model, const ChatRequest& request, const SamplingSettings& sampling)
      : model_(model),
        sampling_(sampling),
        thinks_(request.thinks),
        context_(model.longest_sequence),
        encoder_(*model.tokenizer, request.chat_template, "--chat-template") {}

  /// The text behind the last message; `sink` gets it as it is made.
  std::string answer(const Dialogue& dialogue, const TextStream::Sink& sink) {
    const std::vector<int32_t> prompt = encoder_.prompt(dialogue, thinks_);
    const auto length = static_cast<int64_t>(prompt.size());
    if (length >= context_) {
      throw ConfigError(
          fmt::format("the dialogue has {} tokens, and the model's context is {}; shorten it or "
                      "begin a new one",
                      length, context_));
    }
    SamplingSettings sampling = sampling_;
    sampling.max_new_tokens = std::min(sampling.max_new_tokens, context_ - length);
    Generator generator(*model_.device, model_.engine->model(), length + sampling.max_new_tokens);
    TextStream text(*model_.tokenizer, sink);
    int64_t written = 0;
    generator.generate(prompt, sampling, [&](int32_t token) {
      if (ends_answer(token)) return false;
      text.add({token});
      ++written;
      return true;
    });
    if (written == sampling.max_new_tokens) {
      cut_ = fmt::format(
          "note: the answer is cut after {} tokens ({})\n", written,
          written < sampling_.max_new_tokens ? "the model's context" : "--max-new-tokens");
    }
    return text.finish();
  }

  /// Ends the output of an answer.
  void end_line() {
    print_at_once("\n");
    fmt::print(stderr, "{}", std::exchange(cut_, ""));
  }

 private:
  bool ends_answer(int32_t token) const {
    const std::vector<int64_t>& ends = model_.eos_token_ids;
    return encoder_.ends_answer(token) || std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  CheckpointModel& model_;
  const SamplingSettings& sampling_;
  bool thinks_;
  int64_t context_;
  ChatEncoder encoder_;
  std::string cut_;  ///< says that the last answer is not whole
};

Dialogue with_system(Dialogue dialogue, const std::string& system) {
  const bool has_own = !dialogue.empty() && dialogue.front().role == ChatRole::system;
  if (!system.empty() && !has_own) dialogue.insert(dialogue.begin(), {ChatRole::system, system});
  return dialogue;
}

/// A line as `data.train` reads it.
std::string as_json(const Dialogue& dialogue) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatMessage& message : dialogue) {
    nlohmann::ordered_json entry = {{"role", name_of(message.role)}, {"content", message.content}};
    if (message.reasoning) entry["reasoning_content"] = *message.reasoning;
    messages.push_back(std::move(entry));
  }
  return json_text(nlohmann::ordered_json({{"messages", std::move(messages)}}));
}

void answer_file(Answerer& answerer, const ChatRequest& request) {
  for_each_json_line(request.messages, [&](std::string_view line, const std::string& where) {
    Dialogue dialogue = with_system(read_question(line, where), request.system);
    try {
      std::string answer = answerer.answer(dialogue, [](std::string_view) {});
      dialogue.push_back({ChatRole::assistant, std::move(answer)});
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where, error.what()));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", where, error.what()));
    }
    print_at_once(as_json(dialogue));
    answerer.end_line();
  });
}

/// A line is a message; blank ones are left out.
void answer_lines(Answerer& answerer, const std::string& system) {
  const bool prompts = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (prompts) print_fitted(stderr, "A line is a message; Ctrl-D ends the dialogue.\n");
  Dialogue dialogue = with_system({}, system);
  std::string line;
  for (;;) {
    if (prompts) print_at_once("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (!is_utf8(line)) throw DataError("standard input: a message is not UTF-8");
    dialogue.push_back({ChatRole::user, line});
    dialogue.push_back({ChatRole::assistant, answerer.answer(dialogue, print_at_once)});
    answerer.end_line();
  }
  if (prompts) print_at_once("\n");
}

}  // namespace

int run_chat(CheckpointModel& model, const ChatRequest& request, const SamplingSettings& sampling) {
  Answerer answerer(model, request, sampling);
  if (!request.messages.empty()) {
    answer_file(answerer, request);
  } else if (request.prompt) {
    answerer.answer(with_system({{ChatRole::user, *request.prompt}}, request.system),
                    print_at_once);
    answerer.end_line();
  } else {
    answer_lines(answerer, request.system);
  }
  return 0;
}

}  // namespace fp8train
