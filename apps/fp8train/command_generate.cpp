// fp8train generate: text from a trained model, or a dialogue with it.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_text.h"
#include "base/screen.h"
#include "base/text.h"
#include "checkpoint_model.h"
#include "commands.h"
#include "data/chat/chat_encoder.h"
#include "data/readers/json_lines.h"
#include "data/utf8.h"
#include "text_stream.h"
#include "train/inference/generator.h"

namespace fp8train {
namespace {

struct ChatRequest {
  std::string chat_template = "auto";  ///< as ChatEncoder takes it
  std::string system;                  ///< empty: none, or the template's own
  std::string messages;                ///< JSON lines, each to be answered; empty: none
  std::optional<std::string> prompt;   ///< a question; none: those of standard input
  bool thinks = true;                  ///< false: Qwen3 answers at once
};

/// Writes answers to dialogues.
class Answerer {
 public:
  Answerer(CheckpointModel& model, const ChatRequest& request, const SamplingSettings& sampling)
      : model_(model),
        sampling_(sampling),
        thinks_(request.thinks),
        context_(model.longest_sequence),
        encoder_(*model.tokenizer, request.chat_template, "--chat-template") {}

  /// The text behind the last message; `sink` gets it as it is made.
  std::string answer(const Dialogue& dialogue, const TextStream::Sink& sink) {
    const std::vector<int32_t> prompt = encoder_.prompt(dialogue, thinks_);
    const auto length = static_cast<int64_t>(prompt.size());
    if (length >= context_) {
      throw ConfigError(
          fmt::format("the dialogue has {} tokens, and the model's context is {}; shorten it or "
                      "begin a new one",
                      length, context_));
    }
    SamplingSettings sampling = sampling_;
    sampling.max_new_tokens = std::min(sampling.max_new_tokens, context_ - length);
    Generator generator(*model_.device, model_.engine->model(), length + sampling.max_new_tokens);
    TextStream text(*model_.tokenizer, sink);
    int64_t written = 0;
    generator.generate(prompt, sampling, [&](int32_t token) {
      if (ends_answer(token)) return false;
      text.add({token});
      ++written;
      return true;
    });
    if (written == sampling.max_new_tokens) {
      cut_ = fmt::format(
          "note: the answer is cut after {} ({})\n", counted(written, "token"),
          written < sampling_.max_new_tokens ? "the model's context" : "--max-new-tokens");
    }
    return text.finish();
  }

  /// Ends the output of an answer.
  void end_line() {
    print_at_once("\n");
    fmt::print(stderr, "{}", std::exchange(cut_, ""));
  }

 private:
  bool ends_answer(int32_t token) const {
    const std::vector<int64_t>& ends = model_.eos_token_ids;
    return encoder_.ends_answer(token) || std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  CheckpointModel& model_;
  const SamplingSettings& sampling_;
  bool thinks_;
  int64_t context_;
  ChatEncoder encoder_;
  std::string cut_;  ///< says that the last answer is not whole
};

Dialogue with_system(Dialogue dialogue, const std::string& system) {
  const bool has_own = !dialogue.empty() && dialogue.front().role == ChatRole::system;
  if (!system.empty() && !has_own) dialogue.insert(dialogue.begin(), {ChatRole::system, system});
  return dialogue;
}

/// A line as `data.train` reads it.
std::string as_json(const Dialogue& dialogue) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const ChatMessage& message : dialogue) {
    nlohmann::ordered_json entry = {{"role", name_of(message.role)}, {"content", message.content}};
    if (message.reasoning) entry["reasoning_content"] = *message.reasoning;
    messages.push_back(std::move(entry));
  }
  return json_text(nlohmann::ordered_json({{"messages", std::move(messages)}}));
}

void answer_file(Answerer& answerer, const ChatRequest& request) {
  for_each_json_line(request.messages, [&](std::string_view line, const std::string& where) {
    Dialogue dialogue = with_system(read_question(line, where), request.system);
    try {
      std::string answer = answerer.answer(dialogue, [](std::string_view) {});
      dialogue.push_back({ChatRole::assistant, std::move(answer)});
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", where, error.what()));
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("{}: {}", where, error.what()));
    }
    print_at_once(as_json(dialogue));
    answerer.end_line();
  });
}

/// A line is a message; blank ones are left out.
void answer_lines(Answerer& answerer, const std::string& system) {
  const bool prompts = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (prompts) print_fitted(stderr, "A line is a message; Ctrl-D ends the dialogue.\n");
  Dialogue dialogue = with_system({}, system);
  std::string line;
  for (;;) {
    if (prompts) print_at_once("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (!is_utf8(line)) throw DataError("standard input: a message is not UTF-8");
    dialogue.push_back({ChatRole::user, line});
    dialogue.push_back({ChatRole::assistant, answerer.answer(dialogue, print_at_once)});
    answerer.end_line();
  }
  if (prompts) print_at_once("\n");
}

/// Answers each line of `messages` with a JSON object of all messages, or `prompt`, or in a
/// dialogue the lines of standard input, with text that is printed as it is made. `model` has
/// scales. Throws ConfigError (template, a dialogue that is too long) or DataError (a line of
/// `messages`).
int run_chat(CheckpointModel& model, const ChatRequest& request, const SamplingSettings& sampling) {
  Answerer answerer(model, request, sampling);
  if (!request.messages.empty()) {
    answer_file(answerer, request);
  } else if (request.prompt) {
    answerer.answer(with_system({{ChatRole::user, *request.prompt}}, request.system),
                    print_at_once);
    answerer.end_line();
  } else {
    answer_lines(answerer, request.system);
  }
  return 0;
}

constexpr int64_t kTextTokens = 100;
constexpr int64_t kAnswerTokens = 1024;

struct GenerateOptions {
  CheckpointRequest model;
  SamplingSettings sampling;
  ChatRequest chat;
  bool chats = false;
  std::string prompts;  ///< JSON lines; empty: one prompt
  int64_t samples = 0;  ///< of each prompt; 0: one, which is not written as JSON
  int64_t batch_size = 8;

  bool has_many() const { return samples > 0 || !prompts.empty(); }
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
  constexpr int64_t kMaxBatch = 256;  // experts have memory for as many tokens
  if (options.batch_size > kMaxBatch) {
    throw ConfigError(
        fmt::format("--batch-size: {} is not in [1, {}]", options.batch_size, kMaxBatch));
  }
  if (options.has_many() && options.chats) {
    throw ConfigError("--prompts and --samples continue texts; leave out --chat");
  }
  if (!options.prompts.empty() && chat.prompt) {
    throw ConfigError("--prompts and --prompt: give one of them");
  }
  for (const auto& [option, is_given] : of_dialogues) {
    if (is_given && !options.chats) {
      throw ConfigError(fmt::format("{} is for dialogues; add --chat", option));
    }
  }
}

/// A text to be continued.
struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;
};

std::vector<Prompt> prompts_of(const GenerateOptions& options, const CheckpointModel& opened) {
  std::vector<Prompt> prompts;
  const auto add = [&](const std::string& text, const std::string& where) {
    prompts.push_back({text, encode_prompt(*opened.tokenizer, text)});
    const auto length = static_cast<int64_t>(prompts.back().tokens.size());
    if (length == 0) {
      throw ConfigError(where + ": give the text to continue, at least one character");
    }
    if (length > opened.longest_sequence) {
      throw ConfigError(fmt::format("{}: the prompt has {} tokens, the model reads at most {}",
                                    where, length, opened.longest_sequence));
    }
  };
  if (options.prompts.empty()) {
    add(options.chat.prompt.value_or(""), "--prompt");
    return prompts;
  }
  for_each_json_line(options.prompts, [&](std::string_view line, const std::string& where) {
    const nlohmann::json record = parse_json_line(line, where);
    parse_json(line, where);  // refuses a key that is given twice
    const auto text = record.is_object() ? record.find("prompt") : record.end();
    if (text == record.end() || !text->is_string()) {
      throw DataError(where + ": expected an object with \"prompt\", the text to continue");
    }
    for (const auto& [key, ignored] : record.items()) {
      if (key != "prompt") {
        throw DataError(fmt::format(
            "{}: unknown key '{}': a line has \"prompt\" alone; remove the key, and set what holds "
            "for all prompts by the options of `fp8train generate --help`",
            where, key));
      }
    }
    add(text->get<std::string>(), where);
  });
  if (prompts.empty()) {
    throw DataError(options.prompts +
                    ": holds no prompts; give lines such as {\"prompt\": \"Once\"}");
  }
  return prompts;
}

/// Prints a JSON line for each sample of each prompt.
int continue_texts(const CheckpointModel& opened, const GenerateOptions& options,
                   const SamplingSettings& sampling) {
  constexpr int64_t kBatchesAtOnce = 8;  // their lines are printed together
  const std::vector<Prompt> prompts = prompts_of(options, opened);
  const auto samples = static_cast<size_t>(std::max<int64_t>(options.samples, 1));
  const size_t count = prompts.size() * samples;
  size_t longest = 0;
  for (const Prompt& prompt : prompts) {
    longest = std::max(longest, prompt.tokens.size());
  }
  const int64_t batch_size = std::min(options.batch_size, static_cast<int64_t>(count));
  const auto begins = static_cast<int64_t>(longest);
  Generator generator(*opened.device, opened.engine->model(),
                      begins + std::min(sampling.max_new_tokens, opened.longest_sequence - begins),
                      {}, batch_size);
  ProgressLine progress;
  for (size_t begin = 0; begin < count;) {
    const size_t end = std::min(count, begin + static_cast<size_t>(kBatchesAtOnce * batch_size));
    std::vector<TextRequest> requests;
    for (size_t i = begin; i < end; ++i) {
      requests.push_back({prompts[i / samples].tokens, sampling});
      requests.back().sampling.seed += i % samples;
    }
    std::vector<std::vector<int32_t>> texts;
    for (const TextRequest& request : requests) texts.push_back(request.prompt);
    generator.generate(requests, [&](size_t text, int32_t token) {
      texts[text].push_back(token);
      progress.show([&] { return fmt::format("text {}/{}", begin + text + 1, count); });
      return true;
    });
    progress.finish();
    for (size_t i = begin; i < end; ++i) {
      const nlohmann::ordered_json line = {{"prompt", prompts[i / samples].text},
                                           {"seed", requests[i - begin].sampling.seed},
                                           {"text", opened.tokenizer->decode(texts[i - begin])}};
      print_at_once(json_text(line) + "\n");
    }
    begin = end;
  }
  return 0;
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
                      " holds no scales for it; use bf16 or a plan with current scaling");
  }
  SamplingSettings sampling = options.sampling;
  if (sampling.max_new_tokens == 0) {
    sampling.max_new_tokens = options.chats ? kAnswerTokens : kTextTokens;
  }
  return options.chats        ? run_chat(opened, options.chat, sampling)
         : options.has_many() ? continue_texts(opened, options, sampling)
                              : continue_text(opened, options.chat.prompt.value_or(""), sampling);
}

}  // namespace

void add_generate(Arguments command, Action& action) {
  auto options = std::make_shared<GenerateOptions>();
  options->sampling.max_new_tokens = 0;
  add_checkpoint_options(command, options->model);
  command.option("--prompt", options->chat.prompt, "Text to continue; with --chat, to answer");
  command.path("--prompts", options->prompts,
               "JSON lines with a prompt each, continued together, each with a JSON line");
  command.option("--samples N", options->samples, 0,
                 "Texts for each prompt, with --seed, --seed + 1 and so on, as JSON lines");
  command.option("--batch-size", options->batch_size, 1,
                 "Texts of --prompts and --samples that are computed together, at most 256");
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
