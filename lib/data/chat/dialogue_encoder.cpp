#include "data/chat/dialogue_encoder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr size_t kBytesOfTask = 256U << 10;

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

DialogueEncoder::DialogueEncoder(const Tokenizer& tokenizer, std::string chat_template,
                                 std::string_view option, int64_t threads, Sink sink)
    : tokenizer_(tokenizer),
      chat_template_(std::move(chat_template)),
      option_(option),
      tasks_(threads, [sink = std::move(sink)](std::vector<Encoded> encoded) {
        for (Encoded& dialogue : encoded) sink(std::move(dialogue));
      }) {}

void DialogueEncoder::add(Dialogue dialogue, std::string where) {
  const bool has_roles = dialogue.empty() || dialogue.front().role != ChatRole::none;
  if (has_roles && !chat_) chat_.emplace(tokenizer_, chat_template_, option_);
  for (const ChatMessage& message : dialogue) {
    gathered_bytes_ += message.content.size() + message.reasoning.value_or("").size();
  }
  gathered_.push_back({std::move(dialogue), std::move(where)});
  if (gathered_bytes_ >= kBytesOfTask) start_task();
}

void DialogueEncoder::finish() {
  start_task();
  tasks_.finish();
}

void DialogueEncoder::start_task() {
  gathered_bytes_ = 0;
  tasks_.start([this, dialogues = std::exchange(gathered_, {})] {
    std::vector<Encoded> encoded;
    for (const auto& [dialogue, where] : dialogues) {
      try {
        const bool has_roles = dialogue.empty() || dialogue.front().role != ChatRole::none;
        encoded.push_back(has_roles ? chat_->encode(dialogue)
                                    : encode_completion(tokenizer_, dialogue));
      } catch (const DataError& error) {
        throw DataError(fmt::format("{}: {}", where, error.what()));
      }
    }
    return encoded;
  });
}

}  // namespace fp8train
