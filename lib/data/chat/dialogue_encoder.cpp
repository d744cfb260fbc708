#include "data/chat/dialogue_encoder.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/key_error.h"
#include "data/ordered_tasks.h"

namespace fp8train {
namespace {

constexpr size_t kBytesOfTask = 256U << 10;

using Encoded = std::vector<ChatEncoder::Encoded>;
struct Located {
  Dialogue dialogue;
  std::string where;
};

bool has_roles(const Dialogue& dialogue) {
  return dialogue.empty() || dialogue.front().role != ChatRole::none;
}

}  // namespace

ChatEncoder::Encoded encode_completion(const Tokenizer& tokenizer, const Dialogue& dialogue) {
  check(dialogue.size() == 2, "a prompt and a completion are two texts");
  const std::string& prompt = dialogue.front().content;
  ChatEncoder::Encoded encoded;
  encoded.ids = tokenizer.frame().before_document;
  const size_t before = encoded.ids.size();
  const std::vector<int32_t> both = tokenizer.encode(prompt + dialogue.back().content);
  encoded.ids.insert(encoded.ids.end(), both.begin(), both.end());
  if (tokenizer.eos_id() >= 0) encoded.ids.push_back(tokenizer.eos_id());
  const size_t first_target = before + (prompt.empty() ? 0 : tokenizer.encode(prompt).size());
  for (size_t i = 0; i < encoded.ids.size(); ++i) encoded.is_target.push_back(i >= first_target);
  return encoded;
}

void for_each_encoded_dialogue(const Tokenizer& tokenizer, const std::string& chat_template,
                               std::string_view option, int64_t threads,
                               const std::function<void(const DialogueVisitor&)>& read,
                               const EncodedDialogueSink& sink) {
  std::optional<ChatEncoder> chat;  // once a dialogue has roles
  std::vector<Located> gathered;
  size_t gathered_bytes = 0;
  OrderedTasks<Encoded> tasks(threads, [&](Encoded encoded) {
    for (ChatEncoder::Encoded& dialogue : encoded) sink(std::move(dialogue));
  });
  const auto start_task = [&] {
    gathered_bytes = 0;
    tasks.start([&tokenizer, &chat, dialogues = std::exchange(gathered, {})] {
      Encoded encoded;
      for (const Located& located : dialogues) {
        with_prefix<DataError>(located.where + ": ", [&] {
          const Dialogue& dialogue = located.dialogue;
          encoded.push_back(has_roles(dialogue) ? chat->encode(dialogue)
                                                : encode_completion(tokenizer, dialogue));
        });
      }
      return encoded;
    });
  };
  read([&](const Dialogue& dialogue, const std::string& where) {
    if (has_roles(dialogue) && !chat) chat.emplace(tokenizer, chat_template, option);
    for (const ChatMessage& message : dialogue) {
      gathered_bytes += message.content.size() + message.reasoning.value_or("").size();
    }
    gathered.push_back({dialogue, where});
    if (gathered_bytes >= kBytesOfTask) start_task();
  });
  start_task();
  tasks.finish();
}

}  // namespace fp8train
