#include "data/chat/dialogue_encoder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr size_t kBytesOfTask = 256U << 10;

}  // namespace

DialogueEncoder::DialogueEncoder(const ChatEncoder& encoder, int64_t threads, Sink sink)
    : encoder_(encoder), tasks_(threads, [sink = std::move(sink)](std::vector<Encoded> encoded) {
        for (Encoded& dialogue : encoded) sink(std::move(dialogue));
      }) {}

void DialogueEncoder::add(Dialogue dialogue, std::string where) {
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
        encoded.push_back(encoder_.encode(dialogue));
      } catch (const DataError& error) {
        throw DataError(fmt::format("{}: {}", where, error.what()));
      }
    }
    return encoded;
  });
}

}  // namespace fp8train
