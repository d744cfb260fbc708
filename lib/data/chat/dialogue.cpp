#include "data/chat/dialogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<std::string_view, ChatRole>, 5> kRoles = {
    {{"system", ChatRole::system},
     {"user", ChatRole::user},
     {"assistant", ChatRole::assistant},
     {"human", ChatRole::user},
     {"gpt", ChatRole::assistant}}};

/// Reads the messages of one record.
class Record {
 public:
  explicit Record(const std::string& where) : where_(where) {}

  /// Nothing where `value` is not such a record. `completed`: with the answer to a 'prompt'.
  std::optional<Dialogue> read(const Json& value, bool completed) const {
    if (!value.is_object()) return std::nullopt;
    if (value.contains("messages")) return messages(value["messages"], "role", "content");
    if (value.contains("conversations")) return messages(value["conversations"], "from", "value");
    if (!value.contains("prompt") || (completed && !value.contains("completion"))) {
      return std::nullopt;
    }
    Dialogue dialogue = side(value["prompt"], ChatRole::user);
    if (completed) {
      for (ChatMessage& message : dialogue) message.is_target = false;
      const Dialogue answer = side(value["completion"], ChatRole::assistant);
      dialogue.insert(dialogue.end(), answer.begin(), answer.end());
    }
    return dialogue;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", where_, what));
  }

 private:
  /// `role_key`, `text_key`: as the kind of record calls them.
  Dialogue messages(const Json& list, const char* role_key, const char* text_key) const {
    if (!list.is_array()) {
      fail(fmt::format("the messages are not a list but {}", list.type_name()));
    }
    Dialogue dialogue;
    for (size_t i = 0; i < list.size(); ++i) {
      dialogue.push_back(message(list[i], role_key, text_key, i + 1));
    }
    return dialogue;
  }

  /// A text is one message of `role`.
  Dialogue side(const Json& value, ChatRole role) const {
    if (value.is_string()) {
      return {{role, value.get<std::string>(), role == ChatRole::assistant}};
    }
    return messages(value, "role", "content");
  }

  /// `i`: counted from 1, for messages.
  ChatMessage message(const Json& value, const char* role_key, const char* text_key,
                      size_t i) const {
    const auto text = [&](const char* key) {
      if (!value.is_object() || !value.contains(key) || !value[key].is_string()) {
        fail(fmt::format("message {}: '{}' is missing or not a text", i, key));
      }
      return value[key].get<std::string>();
    };
    const std::string role = text(role_key);
    const auto* const known = std::find_if(kRoles.begin(), kRoles.end(),
                                           [&](const auto& entry) { return entry.first == role; });
    if (known == kRoles.end()) {
      fail(fmt::format("message {}: unknown role '{}' (expected system, user or assistant)", i,
                       role));
    }
    if (value.contains("tool_calls") && !value["tool_calls"].empty()) {
      fail(fmt::format("message {}: 'tool_calls' are not read; remove the dialogue", i));
    }
    const bool has_parts = value.contains(text_key) && value[text_key].is_array();
    ChatMessage message = {known->second, has_parts ? joined(value[text_key], i) : text(text_key),
                           known->second == ChatRole::assistant};
    if (value.contains("reasoning_content") && !value["reasoning_content"].is_null()) {
      message.reasoning = text("reasoning_content");
    }
    if (value.contains("weight") && !value["weight"].is_null()) {
      if (!value["weight"].is_number()) {
        fail(
            fmt::format("message {}: 'weight' is {}; expected a number, 0 for a message that is "
                        "not learned",
                        i, value["weight"].dump()));
      }
      message.is_target = message.is_target && value["weight"] != 0;
    }
    return message;
  }

  /// The texts of a list of parts.
  std::string joined(const Json& parts, size_t i) const {
    std::string all;
    for (const Json& part : parts) {
      const bool is_text = part.is_object() && part.value("type", Json()) == "text" &&
                           part.value("text", Json()).is_string();
      if (!is_text) {
        fail(
            fmt::format("message {}: a part of its content is not {{\"type\": \"text\", \"text\": "
                        "...}} but {}; pictures and sounds are not read",
                        i, part.dump(-1, ' ', true).substr(0, 60)));
      }
      all += part["text"].get<std::string>();
    }
    return all;
  }

  const std::string& where_;
};

/// The keys of an object, as far as it is there.
std::set<std::string> top_keys(std::string_view head) {
  std::set<std::string> keys;
  int depth = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    const char c = head[i];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth == 0 && c == '}') break;
    if (c != '"') continue;
    const size_t begin = i + 1;
    for (++i; i < head.size() && head[i] != '"'; ++i) {
      if (head[i] == '\\') ++i;
    }
    const size_t colon = i < head.size() ? head.find_first_not_of(" \t", i + 1) : head.size();
    if (depth == 1 && colon < head.size() && head[colon] == ':') {
      keys.emplace(head.substr(begin, i - begin));
    }
  }
  return keys;
}

}  // namespace

std::string_view name_of(ChatRole role) {
  return kRoles[static_cast<size_t>(role)].first;
}

Dialogue read_dialogue(std::string_view json, const std::string& where) {
  const Record record(where);
  std::optional<Dialogue> dialogue = record.read(parse_json_line(json, where), true);
  if (!dialogue) {
    record.fail(
        "not a dialogue: expected an object with 'messages', 'conversations', or 'prompt' and "
        "'completion'; for documents set data.train[].format: jsonl");
  }
  if (std::none_of(dialogue->begin(), dialogue->end(),
                   [](const ChatMessage& message) { return message.is_target; })) {
    record.fail("the dialogue has no message of the assistant to learn; remove the line");
  }
  return *std::move(dialogue);
}

Dialogue read_question(std::string_view json, const std::string& where) {
  const Record record(where);
  std::optional<Dialogue> dialogue = record.read(parse_json_line(json, where), false);
  if (!dialogue) {
    record.fail("not a dialogue: expected an object with 'messages', 'conversations' or 'prompt'");
  }
  if (dialogue->empty() || dialogue->back().role != ChatRole::user) {
    record.fail("the last message is not the user's, so that there is nothing to answer");
  }
  return *std::move(dialogue);
}

bool looks_like_dialogue(std::string_view head) {
  const std::set<std::string> keys = top_keys(head.substr(0, head.find('\n')));
  return !keys.contains("text") && (keys.contains("messages") || keys.contains("conversations") ||
                                    (keys.contains("prompt") && keys.contains("completion")));
}

}  // namespace fp8train
