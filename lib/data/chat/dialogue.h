#pragma once
// Dialogues of fine-tuning, as JSON records have them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// The author of a message.
enum class ChatRole : uint8_t { system, user, assistant };

std::string_view name_of(ChatRole role);  ///< "assistant"

/// One message of a dialogue.
struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  bool is_target = false;                     ///< the model learns to write it
  std::optional<std::string> reasoning = {};  ///< in front of an answer, where it is apart
};

using Dialogue = std::vector<ChatMessage>;

/// Reads a dialogue. `json` is one of {"messages": [{"role", "content"}]} (of OpenAI and TRL; roles
/// system, user, assistant; an optional "weight": 0 leaves an answer out of the loss),
/// {"conversations": [{"from", "value"}]} (ShareGPT; also human and gpt), {"prompt", "completion"}
/// (texts, or lists of messages; targets are those of the completion). Messages of the assistant
/// are targets. A content is a text or a list of {"type": "text", "text"}, which are joined with
/// nothing between, as the templates of models for text and pictures do; "reasoning_content" is a
/// text that templates that think put before an answer. Throws DataError, which begins with
/// `where`, for another record and for one without a target.
Dialogue read_dialogue(std::string_view json, const std::string& where);

/// Reads a record whose answer is to be written: its last message is the user's, and a "completion"
/// is not read. Throws as read_dialogue() does.
Dialogue read_question(std::string_view json, const std::string& where);

/// Whether the keys of a JSON object are those of such a record, without "text". `head` may end
/// anywhere.
bool looks_like_dialogue(std::string_view head);

}  // namespace fp8train
