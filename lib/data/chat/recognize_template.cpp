// Which of the known chat templates the text of a template (Jinja) is.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace fp8train {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether `holds` is true of what follows each occurrence of `part`.
template <typename Holds>
bool after_each(std::string_view text, std::string_view part, const Holds& holds) {
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    if (!holds(text.substr(at + part.size()))) return false;
  }
  return true;
}

bool skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool skip_line_feed(std::string_view& text) {
  return skip(text, "\\n") || skip(text, "\n");
}

/// Behind a {%: a statement, or the other branches of an `if`.
void skip_statement(std::string_view& text) {
  const std::string_view statement = text.substr(0, text.find("%}"));
  if (has(statement, "else") || has(statement, "elif")) {
    text = text.substr(std::min(text.size(), text.find("endif")));
  }
  text = text.substr(std::min(text.size(), text.find("%}")));
  skip(text, "%}");
}

/// Whether the template writes a line feed next: in the same text, or in the one behind it.
bool line_feed_follows(std::string_view text) {
  if (skip_line_feed(text)) return true;
  while (!text.empty()) {
    if (skip(text, "{%")) {
      skip_statement(text);
    } else if (std::string_view("'\"+-~{} ").find(text.front()) != std::string_view::npos) {
      text.remove_prefix(1);
    } else {
      return skip_line_feed(text);
    }
  }
  return false;
}

/// A message begins with <|im_start|>, its role and a line feed.
bool header_ends_with_line_feed(std::string_view text) {
  const std::string_view header = text.substr(0, text.find("<|"));
  return has(header, "\\n") || has(header, "\n");
}

/// The system message that a ChatML template writes by itself, empty where it has none; nothing
/// where it is not a plain text.
std::optional<std::string> default_system_of(std::string_view jinja) {
  std::string system;
  const bool readable = after_each(jinja, "<|im_start|>system", [&](std::string_view rest) {
    if (!skip_line_feed(rest)) return false;
    if (rest.starts_with('{')) return true;  // a message's content
    if (skip(rest, "'") || skip(rest, "\"")) {
      const size_t value = rest.find_first_not_of(" +(");
      return value != std::string_view::npos && !rest.substr(value).starts_with("sys") &&
             !rest.substr(value).starts_with("default");
    }
    const std::string_view text = rest.substr(0, rest.find("<|im_end|>"));
    if (text.empty() || text.find_first_of("'\"{}\\\n") != std::string_view::npos) return false;
    if (system.empty()) system = text;
    return system == text;
  });
  return readable ? std::optional(system) : std::nullopt;
}

std::optional<ChatForm> chatml_form(std::string_view jinja) {
  for (const char* other :
       {"<think>", "reasoning_content", "<|im_sep|>", "bos_token", "eos_token", "trim", "strip"}) {
    if (has(jinja, other)) return std::nullopt;
  }
  if (!has(jinja, "<|im_end|>") || !after_each(jinja, "<|im_end|>", line_feed_follows) ||
      !after_each(jinja, "<|im_start|>", header_ends_with_line_feed)) {
    return std::nullopt;
  }
  const std::optional<std::string> system = default_system_of(jinja);
  if (!system) return std::nullopt;
  return ChatForm{system->empty() ? ChatTemplate::chatml : ChatTemplate::qwen, *system};
}

/// What Qwen3's own template says and none of those made from it: thinking can be left out, and an
/// answer shows it behind the last question alone.
std::optional<ChatForm> qwen3_form(std::string_view jinja) {
  for (const char* other : {"bos_token", "trim", "preserve_thinking", "render_content", "vision"}) {
    if (has(jinja, other)) return std::nullopt;
  }
  for (const char* part :
       {"enable_thinking is false", "loop.index0 > ns.last_query_index", "content.lstrip(",
        "loop.last or (not loop.last and reasoning_content)", "<think>\\n\\n</think>\\n\\n"}) {
    if (!has(jinja, part)) return std::nullopt;
  }
  const bool has_header = after_each(jinja, "<|im_start|>", [](std::string_view rest) {
    return header_ends_with_line_feed(rest);
  });
  return has_header ? std::optional(ChatForm{ChatTemplate::qwen3, ""}) : std::nullopt;
}

std::optional<ChatForm> llama3_form(std::string_view jinja) {
  if (has(jinja, "strftime_now")) return std::nullopt;  // today's date
  if (!has(jinja, "bos_token") || !has(jinja, "trim") || !has(jinja, "<|eot_id|>")) {
    return std::nullopt;
  }
  if (has(jinja, "Cutting Knowledge Date")) {
    if (!has(jinja, "December 2023") || !has(jinja, "26 Jul 2024")) return std::nullopt;
    return ChatForm{ChatTemplate::llama31, ""};
  }
  const bool has_own_system =
      !after_each(jinja, "system<|end_header_id|>", [](std::string_view rest) {
        while (skip_line_feed(rest)) {
        }
        return rest.empty() || rest.front() == '\'' || rest.front() == '"' || rest.front() == '{';
      });
  if (has_own_system) return std::nullopt;
  return ChatForm{ChatTemplate::llama3, ""};
}

std::optional<ChatForm> form_of(std::string_view jinja) {
  if (has(jinja, "<|start_header_id|>")) return llama3_form(jinja);
  if (has(jinja, "<|im_start|>") && has(jinja, "<think>")) return qwen3_form(jinja);
  if (has(jinja, "<|im_start|>")) return chatml_form(jinja);
  if (has(jinja, "[SYSTEM_PROMPT]") || !has(jinja, "[INST]")) return std::nullopt;
  if (!has(jinja, "system")) return std::nullopt;  // system messages are left out, or a user's
  const auto quoted = [&](std::string_view text) {
    return has(jinja, fmt::format("'{}'", text)) || has(jinja, fmt::format("\"{}\"", text));
  };
  if (has(jinja, "<<SYS>>")) return ChatForm{ChatTemplate::llama2, ""};
  if (quoted("[INST] ") && quoted("[/INST]")) return ChatForm{ChatTemplate::mistral, ""};
  if (quoted(" [INST] ") && quoted(" [/INST]")) return ChatForm{ChatTemplate::mistral1, ""};
  return std::nullopt;
}

/// Why a template is not known, as far as that can be said.
std::string_view reason_of(std::string_view jinja) {
  if (has(jinja, "strftime_now")) {
    return ": it writes today's date (strftime_now), with which the same dialogue has other ids "
           "tomorrow; llama3.1 is Llama 3.2's with the date 26 Jul 2024";
  }
  return "";
}

}  // namespace

ChatForm recognize_chat_template(std::string_view jinja, const std::string& where,
                                 std::string_view option) {
  const std::optional<ChatForm> form = form_of(jinja);
  if (!form) {
    throw ConfigError(fmt::format(
        "{}: auto, but the template in {} is none of those that are known{}; name the one to use "
        "({})",
        option, where, reason_of(jinja), chat_template_names()));
  }
  return *form;
}

}  // namespace fp8train
