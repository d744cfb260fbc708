#include "data/chat/dialogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json_reader.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

using Json = nlohmann::json;
using Text = std::string_view;

constexpr std::pair<Text, ChatRole> kRoles[] = {{"system", ChatRole::system},
                                                {"user", ChatRole::user},
                                                {"assistant", ChatRole::assistant},
                                                {"human", ChatRole::user},
                                                {"gpt", ChatRole::assistant}};

/// Keys of a task and of its answer, of which one is there.
struct Pair {
  Text task;
  std::array<Text, 3> answers;
};
constexpr Pair kPairs[] = {{"prompt", {"completion", "response"}},
                           {"instruction", {"output", "response"}},
                           {"question", {"answer", "response"}}};
constexpr Text kSystemKeys[] = {"system", "system_prompt"};

/// Keys that would change what is learned, and why they are not read.
constexpr Text kTools = "tools and calls of functions are not rendered";
constexpr Text kPreference = "good and bad answers are not distinguished";
constexpr Text kMedia = "pictures, sounds and films are not read";
constexpr Text kWeights = "single tokens and records have no weights";
constexpr Text kContext = "what a task is about is read from 'input' next to 'instruction' only";
struct Refusal {
  Text reason;
  std::array<Text, 8> keys;  ///< the rest is empty
};
constexpr Refusal kRefused[] = {
    {kTools, {"tools", "functions", "tool_calls", "function_call", "documents"}},
    {kPreference,
     {"label", "labels", "chosen", "rejected", "chosen_response", "rejected_response", "kto_tag",
      "kto_label"}},
    {kMedia, {"images", "image", "audios", "audio", "videos", "video"}},
    {kWeights,
     {"train_detail", "loss_weight", "training_detail", "loss_mask", "weight", "train", "loss"}},
    {kContext, {"context", "input"}},
    {"a record is either messages or tokens", {"input_ids"}},
    {"earlier messages are read from 'messages'", {"history"}}};
/// Of a message: whether it is learned.
constexpr Text kLearned[] = {"weight", "train", "loss"};
/// Of an answer: what was thought before it, by the names that transformers reads.
constexpr Text kThoughts[] = {"reasoning_content", "thinking", "reasoning"};

bool has(const Json& object, Text key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

/// Whether it is null, an empty text, list or object.
bool is_empty(const Json& value) {
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

/// Whether a key that is refused for this reason has a value that changes nothing: no tools, also
/// if a text says so in JSON, or a weight of 1.
bool changes_nothing(const Json& value, Text reason) {
  if (reason == kTools && value.is_string()) {
    const Json written = Json::parse(value.get_ref<const std::string&>(), nullptr, false);
    return is_empty(value) || (!written.is_discarded() && is_empty(written));
  }
  return is_empty(value) || (reason == kWeights && (value == 1 || value == true));
}

const Pair* pair_in(const Json& record, bool answered) {
  const auto* const found = std::ranges::find_if(kPairs, [&](const Pair& pair) {
    return record.contains(pair.task) &&
           (!answered || std::ranges::any_of(pair.answers, [&](Text key) {
             return !key.empty() && record.contains(key);
           }));
  });
  return found == std::end(kPairs) ? nullptr : found;
}

/// Reads the messages of one record.
class Record {
 public:
  Record(Text json, const std::string& where, const IgnoredKey& ignored)
      : where_(where), ignored_(ignored), value_(parse_json_line(json, where)) {}

  /// Nothing where it is no dialogue. `answered`: with the answer to a task.
  std::optional<Dialogue> read(bool answered) const {
    if (!value_.is_object()) return std::nullopt;
    Dialogue dialogue;
    std::vector<Text> read;
    if (value_.contains("messages") || value_.contains("conversations")) {
      read = {value_.contains("messages") ? "messages" : "conversations"};
      dialogue = messages(value_.at(read.front()));
    } else if (const Pair* const pair = pair_in(value_, answered)) {
      dialogue = task_and_answer(*pair, answered, read);
    } else {
      return std::nullopt;
    }
    add_system(dialogue);
    read.insert(read.end(), std::begin(kSystemKeys), std::end(kSystemKeys));
    check_keys(value_, read, "");
    return dialogue;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", where_, what));
  }

 private:
  Dialogue messages(const Json& list) const {
    if (!list.is_array()) {
      fail(fmt::format("the messages are not a list but {}", json_type_of(list)));
    }
    Dialogue dialogue;
    for (size_t i = 0; i < list.size(); ++i) dialogue.push_back(message(list[i], i + 1));
    return dialogue;
  }

  Dialogue task_and_answer(const Pair& pair, bool answered, std::vector<Text>& read) const {
    read = {pair.task};
    Dialogue dialogue = side(pair.task, ChatRole::user);
    if (pair.task == "instruction" && has(value_, "input")) {
      if (dialogue.size() != 1) fail("'input' next to a list of messages; give one text");
      read.emplace_back("input");
      const std::string input = text_of("input");
      dialogue.front().content += (input.empty() ? "" : "\n") + input;
    }
    for (ChatMessage& message : dialogue) message.is_target = false;
    const auto* const key = std::ranges::find_if(
        pair.answers, [&](Text name) { return !name.empty() && value_.contains(name); });
    if (key == pair.answers.end()) return dialogue;
    read.push_back(*key);
    if (!answered) return dialogue;
    const Dialogue answer = side(*key, ChatRole::assistant);
    dialogue.insert(dialogue.end(), answer.begin(), answer.end());
    if (pair.task == "prompt" && value_["prompt"].is_string() && value_.at(*key).is_string()) {
      for (ChatMessage& message : dialogue) message.role = ChatRole::none;
    }
    return dialogue;
  }

  /// A text is one message of `role`.
  Dialogue side(Text key, ChatRole role) const {
    if (value_.at(key).is_array()) return messages(value_.at(key));
    return {{role, text_of(key), role == ChatRole::assistant}};
  }

  std::string text_of(Text key) const {
    if (!value_.at(key).is_string()) {
      fail(fmt::format("'{}' is not a text but {}", key, json_type_of(value_.at(key))));
    }
    return value_.at(key).get<std::string>();
  }

  void add_system(Dialogue& dialogue) const {
    for (const Text key : kSystemKeys) {
      if (!has(value_, key) || is_empty(value_.at(key))) continue;
      const std::string system = text_of(key);
      if (dialogue.empty() || dialogue.front().role == ChatRole::none) {
        fail(fmt::format("'{}' next to a prompt that is a text; give messages", key));
      }
      if (dialogue.front().role != ChatRole::system) {
        dialogue.insert(dialogue.begin(), {ChatRole::system, system, false});
      } else if (dialogue.front().content != system) {
        fail(fmt::format("'{}' next to another system message; keep one", key));
      }
    }
  }

  /// `read`: keys of `object` that have been read. `prefix`: of the names of the others.
  void check_keys(const Json& object, const std::vector<Text>& read, Text prefix) const {
    for (const auto& item : object.items()) {
      const std::string& key = item.key();
      if (std::ranges::find(read, key) != read.end()) continue;
      const auto* const refused = std::ranges::find_if(kRefused, [&](const Refusal& refusal) {
        return !key.empty() && std::ranges::find(refusal.keys, key) != refusal.keys.end();
      });
      if (refused == std::end(kRefused)) {
        if (ignored_) ignored_(std::string(prefix) + key);
      } else if (!changes_nothing(item.value(), refused->reason)) {
        fail(fmt::format("'{}{}' is not read: {}; remove the key, or the record", prefix, key,
                         refused->reason));
      }
    }
  }

  /// `i`: counted from 1, for messages.
  ChatMessage message(const Json& value, size_t i) const {
    const bool shared = value.is_object() && !value.contains("role") && value.contains("from");
    const char* const role_key = shared ? "from" : "role";
    const char* const text_key = shared ? "value" : "content";
    const auto text = [&](Text key) {
      const auto found = value.is_object() ? value.find(key) : value.end();
      if (found == value.end() || !found->is_string()) {
        fail(fmt::format("message {}: '{}' is missing or not a text", i, key));
      }
      return found->get<std::string>();
    };
    const std::string role = text(role_key);
    const auto* const known =
        std::ranges::find_if(kRoles, [&](const auto& entry) { return entry.first == role; });
    if (known == std::end(kRoles)) {
      fail(fmt::format("message {}: unknown role '{}' (expected system, user or assistant)", i,
                       role));
    }
    std::vector<Text> read = {role_key, text_key};
    read.insert(read.end(), std::begin(kThoughts), std::end(kThoughts));
    read.insert(read.end(), std::begin(kLearned), std::end(kLearned));
    check_keys(value, read, "messages.");
    const bool has_parts = value.contains(text_key) && value[text_key].is_array();
    ChatMessage message = {known->second, has_parts ? joined(value[text_key], i) : text(text_key),
                           known->second == ChatRole::assistant};
    for (const Text key : kThoughts) {
      if (!message.reasoning && has(value, key)) message.reasoning = text(key);
    }
    for (const Text key : kLearned) {
      message.is_target = is_learned(value, key, i) && message.is_target;
    }
    return message;
  }

  bool is_learned(const Json& message, Text key, size_t i) const {
    if (!has(message, key)) return true;
    const Json& value = message.at(key);
    if (value.is_boolean()) return value.get<bool>();
    if (value != 0 && value != 1) {
      fail(fmt::format("message {}: '{}' is {}; expected 0 for a message that is not learned, or 1",
                       i, key, value.dump(-1, ' ', true)));
    }
    return value == 1;
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
  const IgnoredKey& ignored_;
  Json value_;
};

}  // namespace

std::string_view name_of(ChatRole role) {
  return role == ChatRole::none ? "none" : kRoles[static_cast<size_t>(role)].first;
}

Dialogue read_dialogue(std::string_view json, const std::string& where, const IgnoredKey& ignored) {
  const Record record(json, where, ignored);
  std::optional<Dialogue> dialogue = record.read(true);
  if (!dialogue) {
    record.fail(
        "not a dialogue: expected an object with 'messages', 'conversations', 'prompt' and "
        "'completion', 'instruction' and 'output', or 'question' and 'answer'; the format of "
        "documents is jsonl");
  }
  if (std::none_of(dialogue->begin(), dialogue->end(),
                   [](const ChatMessage& message) { return message.is_target; })) {
    record.fail("the dialogue has no message of the assistant to learn; remove the line");
  }
  return *std::move(dialogue);
}

Dialogue read_question(std::string_view json, const std::string& where) {
  const Record record(json, where, nullptr);
  std::optional<Dialogue> dialogue = record.read(false);
  if (!dialogue) {
    record.fail("not a dialogue: expected an object with 'messages', 'conversations' or 'prompt'");
  }
  if (dialogue->empty() || dialogue->back().role != ChatRole::user) {
    record.fail("the last message is not the user's, so that there is nothing to answer");
  }
  return *std::move(dialogue);
}

bool is_dialogue(const nlohmann::json& record) {
  return !record.contains("text") &&
         (record.contains("messages") || record.contains("conversations") ||
          pair_in(record, true) != nullptr);
}

}  // namespace fp8train
