// fp8train generate: text from a trained model, or a dialogue with it.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/screen.h"
#include "chat.h"
#include "checkpoint_model.h"
#include "commands.h"
#include "data/utf8.h"
#include "text_stream.h"
#include "train/inference/generator.h"

namespace fp8train {
namespace {

constexpr int64_t kTextTokens = 100;
constexpr int64_t kAnswerTokens = 1024;

struct GenerateOptions {
  CheckpointRequest model;
  SamplingSettings sampling;
  ChatRequest chat;
  bool chats = false;
};

void check_options(const GenerateOptions& options) {
  if (!(options.sampling.top_p > 0 && options.sampling.top_p <= 1)) {
    throw ConfigError("--top-p must be above 0 and at most 1");
  }
  const ChatRequest& chat = options.chat;
  if (!chat.messages.empty() && chat.prompt) {
    throw ConfigError("--messages and --prompt: give one of them");
  }
  if (options.chats && chat.prompt == "") {
    throw ConfigError("--prompt: a message is empty; without it, lines of standard input are read");
  }
  const std::pair<const char*, bool> of_dialogues[] = {
      {"--messages", !chat.messages.empty()},
      {"--system", !chat.system.empty()},
      {"--chat-template", chat.chat_template != "auto"},
      {"--no-thinking", !chat.thinks}};
  for (const auto& [option, text] :
       {std::pair("--prompt", chat.prompt.value_or("")), std::pair("--system", chat.system)}) {
    if (options.chats && !is_utf8(text)) {
      throw ConfigError(fmt::format("{}: a message is not UTF-8", option));
    }
  }
  for (const auto& [option, is_given] : of_dialogues) {
    if (is_given && !options.chats) {
      throw ConfigError(fmt::format("{} is for dialogues; add --chat", option));
    }
  }
}

int continue_text(CheckpointModel& opened, const std::string& prompt,
                  const SamplingSettings& sampling) {
  const std::vector<int32_t> tokens = encode_prompt(*opened.tokenizer, prompt);
  if (tokens.empty()) {
    throw ConfigError("--prompt: give the text to continue, at least one character");
  }
  const int64_t context = opened.longest_sequence;
  const auto prompt_tokens = static_cast<int64_t>(tokens.size());
  const int64_t available = std::max<int64_t>(0, context - prompt_tokens);
  const int64_t wanted = sampling.max_new_tokens;
  Generator generator(*opened.device, opened.engine->model(),
                      prompt_tokens + std::min(wanted, available));
  TextStream text(*opened.tokenizer, print_at_once);
  text.add(tokens);
  generator.generate(tokens, sampling, [&](int32_t token) {
    text.add({token});
    return true;
  });
  text.finish();
  print_at_once("\n");
  if (wanted > available) {
    print_fitted(stderr,
                 "note: the model's context of {} tokens leaves space for {} after this prompt\n",
                 context, available);
  }
  return 0;
}

int generate(const GenerateOptions& options) {
  check_options(options);
  CheckpointModel opened = open_checkpoint(options.model);
  if (!opened.has_scales) {
    throw ConfigError("--plan " + options.model.plan + ": " + opened.folder +
                      " holds no scales for a plan with delayed scaling; use bf16 or a plan with "
                      "current scaling");
  }
  SamplingSettings sampling = options.sampling;
  if (sampling.max_new_tokens == 0) {
    sampling.max_new_tokens = options.chats ? kAnswerTokens : kTextTokens;
  }
  return options.chats ? run_chat(opened, options.chat, sampling)
                       : continue_text(opened, options.chat.prompt.value_or(""), sampling);
}

}  // namespace

void add_generate(Arguments command, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_new_tokens = 0;
  add_checkpoint_options(command, options->model);
  command.option("--prompt", options->chat.prompt, "Text to continue; with --chat, to answer");
  command.flag("--chat", options->chats,
               "Answer in the model's chat template: --prompt, --messages, or a dialogue");
  command.path("--messages", options->chat.messages,
               "With --chat: JSON lines of messages, each answered with a JSON line");
  command.option("--system MESSAGE", options->chat.system, "With --chat: the system message");
  command.option("--chat-template NAME", options->chat.chat_template,
                 "With --chat: as data.chat_template (default: the tokenizer's)");
  command.flag("--thinking,!--no-thinking", options->chat.thinks,
               "With --chat: whether Qwen3 may think before it answers (default: on)");
  command.option("--max-new-tokens", options->sampling.max_new_tokens, 0,
                 "Most tokens to write, within the model's context; 0: 100, with --chat 1024");
  command.option("--temperature", options->sampling.temperature, 0,
                 "0: always the likeliest token");
  command.option("--top-k", options->sampling.top_k, 0, "0: all tokens");
  command.option("--top-p", options->sampling.top_p, 0,
                 "Smallest set of tokens with at least this probability; 1: all");
  command.option("--seed", options->sampling.seed, "The same seed gives the same text");
  command.run(action, [options] { return generate(*options); });
}

}  // namespace fp8train
