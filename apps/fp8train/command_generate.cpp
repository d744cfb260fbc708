// fp8train generate: text from a trained model.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "checkpoint_model.h"
#include "commands.h"
#include "train/generator.h"

namespace fp8train {
namespace {

struct GenerateOptions {
  CheckpointRequest model;
  SamplingSettings sampling;
  std::string prompt;
};

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

int generate(const GenerateOptions& options) {
  if (!(options.sampling.top_p > 0 && options.sampling.top_p <= 1)) {
    throw ConfigError("--top-p must be above 0 and at most 1");
  }
  CheckpointModel opened = open_checkpoint(options.model);
  std::vector<int32_t> tokens = encode_prompt(*opened.tokenizer, options.prompt);
  if (!opened.has_scales) {
    throw ConfigError("--plan " + options.model.plan + ": " + opened.folder +
                      " holds no scales for a plan with delayed scaling; use bf16 or a plan with "
                      "current scaling");
  }
  const int64_t context = longest_sequence(opened.engine->settings().model);
  const auto prompt_tokens = static_cast<int64_t>(tokens.size());
  const int64_t available = std::max<int64_t>(0, context - prompt_tokens);
  const int64_t wanted = options.sampling.max_new_tokens;
  Generator generator(*opened.device, opened.engine->model(),
                      prompt_tokens + std::min(wanted, available));
  // Decoding the whole sequence each time keeps multi-token characters together.
  std::string printed = opened.tokenizer->decode(tokens);
  print(printed);
  generator.generate(tokens, options.sampling, [&](int32_t token) {
    tokens.push_back(token);
    const std::string text = opened.tokenizer->decode(tokens);
    print(text.substr(printed.size()));
    printed = text;
    return true;
  });
  print("\n");
  if (wanted > available) {
    fmt::print(stderr,
               "note: the model's context of {} tokens leaves space for {} after this prompt\n",
               context, available);
  }
  return 0;
}

}  // namespace

void add_generate(Arguments command, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  command.required("--checkpoint", options->model.path,
                   "Run directory, checkpoint or Hugging Face folder");
  command.option("--prompt", options->prompt, "Text to continue");
  command.option("--max-new-tokens", options->sampling.max_new_tokens, 1,
                 "Tokens to write; fewer where the model's context ends");
  command.option("--temperature", options->sampling.temperature, 0,
                 "0: always the likeliest token");
  command.option("--top-k", options->sampling.top_k, 0, "0: all tokens");
  command.option("--top-p", options->sampling.top_p, 0,
                 "Smallest set of tokens with at least this probability; 1: all");
  command.option("--seed", options->sampling.seed, "The same seed gives the same text");
  command.option("--plan", options->model.plan, "Precision plan to run in");
  command.option("--tokenizer", options->model.tokenizer, "Tokenizer, when the folder has none");
  command.option("--device", options->model.device, "cpu, cuda or auto");
  command.option("--threads", options->model.threads, 0, "0: all cores");
  command.run(action, [options] { return generate(*options); });
}

}  // namespace fp8train
