#pragma once
// Dialogues of fine-tuning, as JSON records have them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

enum class ChatRole : uint8_t { system, user, assistant };

std::string_view name_of(ChatRole role);  ///< "assistant"

struct ChatMessage {
  ChatRole role = ChatRole::user;
  std::string content;
  bool is_target = false;  ///< the model learns to write it
};

using Dialogue = std::vector<ChatMessage>;

/// One of {"messages": [{"role", "content"}]} (of OpenAI and TRL; roles system, user, assistant; an
/// optional "weight": 0 leaves an answer out of the loss), {"conversations": [{"from", "value"}]}
/// (ShareGPT; also human and gpt), {"prompt", "completion"} (texts, or lists of messages; targets
/// are those of the completion). Messages of the assistant are targets. Throws DataError, which
/// begins with `where`.
Dialogue read_dialogue(std::string_view json, const std::string& where);

/// Whether a JSON object is such a record by its keys and has no "text"; `head` may end anywhere.
bool looks_like_dialogue(std::string_view head);

}  // namespace fp8train
