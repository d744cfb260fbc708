#pragma once
// Dialogues of fine-tuning, as JSON records have them.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// The author of a message.
enum class ChatRole : uint8_t {
  system,
  user,
  assistant,
  none,  ///< of a text that stands for itself: no template is put around it
};

std::string_view name_of(ChatRole role);  ///< "assistant"

/// One message of a dialogue.
struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  bool is_target = false;                     ///< the model learns to write it
  std::optional<std::string> reasoning = {};  ///< in front of an answer, where it is apart
};

using Dialogue = std::vector<ChatMessage>;

/// Gets the name of a key of a record that is not read; "messages.NAME" for one of a message.
using IgnoredKey = std::function<void(const std::string& key)>;

/// Reads a dialogue. `json` is one of
///
///   {"messages": [{"role", "content"}]}         of OpenAI and TRL
///   {"conversations": [{"from", "value"}]}      ShareGPT; also human and gpt
///   {"prompt", "completion"}                    lists of messages; targets are the completion's.
///   {"instruction", "input", "output"}          Alpaca: the user's message is the instruction and,
///                                               in a line of its own, the input
///   {"question", "answer"}
///
/// with "response" for "completion", "output" and "answer" too. A "prompt" and a "completion" that
/// are both texts are not put into a template (TRL): two messages of ChatRole::none. Messages of
/// the assistant are targets, but for those with "weight": 0, "train": false or "loss": false. A
/// "system" (or "system_prompt") next to the messages is their first one. A content is a text or a
/// list of {"type": "text", "text"}, which are joined with nothing between, as the templates of
/// models for text and pictures do; "reasoning_content" (or "thinking", or "reasoning") is a text
/// that templates that think put before an answer. Throws DataError, which begins with `where`, for
/// another record, for one without a target, and for keys that would change what is learned and are
/// not read: tools, calls of functions, labels and pairs of answers, other weights; a value that
/// changes nothing, such as an empty list or a weight of 1, is accepted. Calls `ignored` with the
/// other keys.
Dialogue read_dialogue(std::string_view json, const std::string& where,
                       const IgnoredKey& ignored = nullptr);

/// Reads a record whose answer is to be written: its last message is the user's, and a "completion"
/// is not read. Throws as read_dialogue() does.
Dialogue read_question(std::string_view json, const std::string& where);

/// Whether a record has the keys of a dialogue, and no "text".
bool is_dialogue(const nlohmann::json& record);

}  // namespace fp8train
