// The known chat templates as code: the text and the tokens around each message.

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/tokenizers/unicode.h"

namespace fp8train {
namespace {

constexpr std::string_view kLlama31Dates =
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

/// White space to Python, which counts four control characters in addition to Unicode's.
bool is_space(char32_t c) {
  return tokenizers::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

/// Removes what Python's str.strip() removes.
std::string_view stripped(std::string_view text) {
  text = text.substr(0, tokenizers::without_spaces_at_end(text, is_space));
  return text.substr(tokenizers::spaces_at_start(text, is_space));
}

/// Without line feeds at its start or end, as Python's strip('\n').
std::string_view without(std::string_view text, bool at_start, bool at_end) {
  while (at_start && text.starts_with('\n')) text.remove_prefix(1);
  while (at_end && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

struct Answer {
  std::string reasoning, content;
};

/// What was thought: apart, or in the text between <think> and </think>.
Answer parted_answer(const ChatMessage& message) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::string_view text = message.content;
  const size_t end = text.find(kEnd);
  if (message.reasoning || end == std::string_view::npos) {
    return {message.reasoning.value_or(""), message.content};
  }
  std::string_view reasoning = without(text.substr(0, end), false, true);
  const size_t begin = reasoning.rfind(kBegin);
  if (begin != std::string_view::npos) reasoning.remove_prefix(begin + kBegin.size());
  const std::string_view content = text.substr(text.rfind(kEnd) + kEnd.size());
  return {std::string(without(reasoning, true, false)), std::string(without(content, true, false))};
}

/// The last message of the user that is not a tool's response; the last of all where there is none.
size_t last_question(const Dialogue& dialogue) {
  for (size_t i = dialogue.size(); i-- > 0;) {
    const std::string& text = dialogue[i].content;
    const bool is_response =
        text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    if (dialogue[i].role == ChatRole::user && !is_response) return i;
  }
  return dialogue.size() - 1;
}

/// Questions and answers alternate, after at most one system message.
void check_turns(const Dialogue& dialogue) {
  const bool has_system = !dialogue.empty() && dialogue.front().role == ChatRole::system;
  for (size_t i = has_system ? 1 : 0; i < dialogue.size(); ++i) {
    const bool is_question = (i - (has_system ? 1 : 0)) % 2 == 0;
    if (dialogue[i].role != (is_question ? ChatRole::user : ChatRole::assistant)) {
      throw DataError(
          fmt::format("message {}: this chat template takes user and assistant alternately, with a "
                      "system message at most before them",
                      i));
    }
  }
}

}  // namespace

/// The text around the messages of templates with [INST].
struct ChatEncoder::Instructions {
  std::string_view begin, end, end_of_answer;
  std::string_view system_begin, system_end = "\n\n";
  bool system_before_last = false;  ///< the system message comes before the last
                                    ///< question (mistral-common) instead of the first
  bool each_begins = false;         ///< every question begins with the token that begins a sequence
  bool trims_questions = false, trims_answers = false;
};

ChatEncoder::Parts ChatEncoder::render(const Dialogue& dialogue) const {
  check(!dialogue.empty(), "a dialogue has messages");
  Parts parts;
  switch (form_.chat_template) {
    case ChatTemplate::llama3:
    case ChatTemplate::llama31:
      add_headed(dialogue, parts);
      break;
    case ChatTemplate::qwen:
    case ChatTemplate::qwen3:
    case ChatTemplate::chatml:
      add_chatml(dialogue, parts);
      break;
    case ChatTemplate::llama2:
      add_instructions(dialogue,
                       {.begin = "[INST] ",
                        .end = " [/INST]",
                        .end_of_answer = " ",
                        .system_begin = "<<SYS>>\n",
                        .system_end = "\n<</SYS>>\n\n",
                        .each_begins = true,
                        .trims_questions = true,
                        .trims_answers = true},
                       parts);
      break;
    case ChatTemplate::mistral:
      add_instructions(
          dialogue,
          {.begin = "[INST] ", .end = "[/INST]", .system_before_last = true, .trims_answers = true},
          parts);
      break;
    case ChatTemplate::mistral1:
      add_instructions(dialogue, {.begin = " [INST] ", .end = " [/INST]"}, parts);
      break;
    case ChatTemplate::automatic:
      throw InternalError("a template is found before it is written");
  }
  return parts;
}

void ChatEncoder::add_header(ChatRole role, Parts& parts) const {
  parts.push_back({"", begin_, false});
  if (end_of_header_ < 0) {
    parts.push_back({fmt::format("{}\n", name_of(role)), -1, false});
    return;
  }
  parts.push_back({std::string(name_of(role)), -1, false});
  parts.push_back({"", end_of_header_, false});
  parts.push_back({"\n\n", -1, false});
}

void ChatEncoder::add_headed(const Dialogue& dialogue, Parts& parts) const {
  const auto add = [&](ChatRole role, const std::string& text, bool is_target) {
    add_header(role, parts);
    parts.push_back({text, -1, is_target});
    parts.push_back({"", end_, is_target});
  };
  parts.push_back({"", bos_, false});
  size_t next = 0;
  if (form_.chat_template == ChatTemplate::llama31) {
    std::string system(kLlama31Dates);
    if (dialogue.front().role == ChatRole::system) {
      system += stripped(dialogue[next++].content);
    }
    add(ChatRole::system, system, false);
  }
  for (; next < dialogue.size(); ++next) {
    const ChatMessage& message = dialogue[next];
    add(message.role, std::string(stripped(message.content)), message.is_target);
  }
}

void ChatEncoder::add_chatml(const Dialogue& dialogue, Parts& parts) const {
  const auto end = [&](bool is_target) {
    parts.push_back({"", end_, is_target});
    parts.push_back({"\n", -1, false});
  };
  if (!form_.default_system.empty() && dialogue.front().role != ChatRole::system) {
    add_header(ChatRole::system, parts);
    parts.push_back({form_.default_system, -1, false});
    end(false);
  }
  for (size_t i = 0; i < dialogue.size(); ++i) {
    const ChatMessage& message = dialogue[i];
    add_header(message.role, parts);
    if (form_.chat_template == ChatTemplate::qwen3 && message.role == ChatRole::assistant) {
      add_qwen3_answer(dialogue, i, parts);
    } else {
      parts.push_back({message.content, -1, message.is_target});
    }
    end(message.is_target);
  }
}

/// What was thought is shown behind the last question alone, and in the last answer even where it
/// is nothing.
void ChatEncoder::add_qwen3_answer(const Dialogue& dialogue, size_t index, Parts& parts) const {
  const ChatMessage& message = dialogue[index];
  const Answer answer = parted_answer(message);
  const bool is_last = index + 1 == dialogue.size();
  if (index > last_question(dialogue) && (is_last || !answer.reasoning.empty())) {
    add_thoughts(without(answer.reasoning, true, true), message.is_target, parts);
    parts.push_back({std::string(without(answer.content, true, false)), -1, message.is_target});
  } else {
    parts.push_back({answer.content, -1, message.is_target});
  }
}

void ChatEncoder::add_thoughts(std::string_view reasoning, bool is_target, Parts& parts) const {
  add_mark("<think>", is_target, parts);
  parts.push_back({fmt::format("\n{}\n", reasoning), -1, is_target});
  add_mark("</think>", is_target, parts);
  parts.push_back({"\n\n", -1, is_target});
}

/// A token where the tokenizer has such, else its text.
void ChatEncoder::add_mark(std::string_view mark, bool is_target, Parts& parts) const {
  const int32_t id = tokenizer_.token_id(mark);
  parts.push_back({id < 0 ? std::string(mark) : "", id, is_target});
}

/// A text in which [INST] and [/INST] are tokens where the tokenizer has such.
void ChatEncoder::add_text(std::string_view text, bool is_target, Parts& parts) const {
  for (const std::string_view mark : {std::string_view("[INST]"), std::string_view("[/INST]")}) {
    const size_t at = text.find(mark);
    if (at == std::string_view::npos) continue;
    parts.push_back({std::string(text.substr(0, at)), -1, is_target});
    add_mark(mark, is_target, parts);
    text.remove_prefix(at + mark.size());
  }
  parts.push_back({std::string(text), -1, is_target});
}

void ChatEncoder::add_instructions(const Dialogue& dialogue, const Instructions& form,
                                   Parts& parts) const {
  check_turns(dialogue);
  const bool has_system = dialogue.front().role == ChatRole::system;
  const size_t first = has_system ? 1 : 0;
  size_t with_system = first;
  for (size_t i = first; i < dialogue.size(); i += 2) {
    if (form.system_before_last) with_system = i;
  }
  if (!form.each_begins) parts.push_back({"", bos_, false});
  for (size_t i = first; i < dialogue.size(); ++i) {
    const ChatMessage& message = dialogue[i];
    std::string text = message.content;
    if (message.role == ChatRole::user) {
      if (has_system && i == with_system) {
        text = fmt::format("{}{}{}{}", form.system_begin, dialogue.front().content, form.system_end,
                           text);
      }
      if (form.each_begins) parts.push_back({"", bos_, false});
      add_text(form.begin, false, parts);
      parts.push_back({std::string(form.trims_questions ? stripped(text) : text), -1, false});
      add_text(form.end, false, parts);
      continue;
    }
    const std::string_view answer = form.trims_answers ? stripped(text) : text;
    parts.push_back({fmt::format(" {}{}", answer, form.end_of_answer), -1, message.is_target});
    parts.push_back({"", eos_, message.is_target});
  }
}

}  // namespace fp8train
