// fp8train data: prepares token shards, trains tokenizers.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "commands.h"
#include "data/prepare.h"
#include "data/train_tokenizer.h"

namespace fp8train {
namespace {

/// A line on standard error every five seconds.
std::function<void(uint64_t)> progress_lines() {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kInterval(5);
  return [begin = Clock::now(), next = Clock::now() + kInterval](uint64_t bytes) mutable {
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + kInterval;
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double megabytes = static_cast<double>(bytes) / 1e6;
    fmt::print(stderr, "{:.0f} MB in {:.0f} s, {:.1f} MB/s\n", megabytes, seconds,
               megabytes / seconds);
  };
}

void add_train_tokenizer(Arguments& command, Action& action) {
  auto settings = std::make_shared<TokenizerTraining>();
  auto out = std::make_shared<std::string>();
  Arguments train =
      command.part("train-tokenizer", "Train a byte-level BPE vocabulary and write tokenizer.json");
  train.required("input", settings->inputs, "Files or globs, text or JSON lines");
  train.required("--out", *out, "Folder to write");
  train.option("--vocab-size", settings->vocab_size, 257, "Number of ids");
  train.option(
      "--pattern", settings->pattern,
      "How texts are split: r50k_base, p50k_base, cl100k_base, o200k_base, llama3 or qwen");
  train.option("--format", settings->format, "auto, text or jsonl");
  train.option("--text-key", settings->text_key, "Key of the text in JSON lines");
  train.run(action, [settings, out] {
    settings->out = *out;
    const TokenizerReport report = train_tokenizer(*settings);
    fmt::print("{} ids from {} different pieces; {} holds {}\n", report.vocab_size, report.words,
               *out, fmt::join(report.files, ", "));
    if (report.vocab_size < settings->vocab_size) {
      fmt::print(stderr,
                 "note: no pair of tokens occurs twice any more, so that there are fewer "
                 "ids than the {} asked for\n",
                 settings->vocab_size);
    }
    return 0;
  });
}

}  // namespace

void add_data(Arguments command, Action& action) {
  add_train_tokenizer(command, action);
  auto settings = std::make_shared<PrepareSettings>();
  auto out = std::make_shared<std::string>();
  auto chat_template = std::make_shared<std::string>("auto");
  Arguments prepare =
      command.part("prepare", "Tokenize text and JSON-lines files into llm.c token shards");
  prepare.required("input", settings->inputs, "Files or globs");
  prepare.required("--out", *out, "Folder to write");
  prepare.option("--tokenizer", settings->tokenizer, "byte, char, or a tokenizer file or folder");
  prepare.option("--format", settings->format, "auto, text, jsonl or chat");
  prepare.option("--chat-template", *chat_template,
                 "How dialogues are written, as data.chat_template (default: the tokenizer's)");
  prepare.option("--text-key", settings->text_key, "Key of the text in JSON lines");
  prepare.option("--val-fraction", settings->val_fraction, 0, "Held back for validation");
  prepare.option("--shard-tokens", settings->shard_tokens, 1,
                 "Tokens of a file; more go into the next one");
  prepare.flag("--append-eos,!--no-append-eos", settings->append_eos,
               "End each document with the tokenizer's end-of-sequence id (default: on)");
  prepare.option("--threads", settings->threads, 0, "0: all cores");
  prepare.run(action, [settings, out, chat_template] {
    settings->out = *out;
    settings->chat_template = chat_template_named(*chat_template, "--chat-template");
    settings->progress = progress_lines();
    const PrepareReport report = prepare_data(*settings);
    fmt::print("{} documents, {} training and {} validation tokens, vocabulary {}; {} holds {}\n",
               report.documents, report.train_tokens, report.val_tokens, report.vocab_size, *out,
               fmt::join(report.files, ", "));
    return 0;
  });
}

}  // namespace fp8train
