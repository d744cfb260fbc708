#pragma once
// Answers of a chat model: `fp8train generate --chat`.

#include <optional>
#include <string>

#include "checkpoint_model.h"
#include "train/inference/generator.h"

namespace fp8train {

struct ChatRequest {
  std::string chat_template = "auto";  ///< as ChatEncoder takes it
  std::string system;                  ///< empty: none, or the template's own
  std::string messages;                ///< JSON lines, each to be answered; empty: none
  std::optional<std::string> prompt;   ///< a question; none: those of standard input
  bool thinks = true;                  ///< false: Qwen3 answers at once
};

/// Answers each line of `messages` with a JSON object of all messages, or `prompt`, or in a
/// dialogue the lines of standard input, with text that is printed as it is made. `model` has
/// scales. Throws ConfigError (template, a dialogue that is too long) or DataError (a line of
/// `messages`).
int run_chat(CheckpointModel& model, const ChatRequest& request, const SamplingSettings& sampling);

}  // namespace fp8train
