// fp8train data: prepares token shards.

#include <fmt/format.h>

#include <memory>

#include "commands.h"
#include "data/prepare.h"

namespace fp8train {

void add_data(Arguments command, Action& action) {
  auto settings = std::make_shared<PrepareSettings>();
  auto out = std::make_shared<std::string>();
  Arguments prepare =
      command.part("prepare", "Tokenize text and JSON-lines files into llm.c token shards");
  prepare.required("input", settings->inputs, "Files or globs");
  prepare.required("--out", *out, "Folder to write");
  prepare.option("--tokenizer", settings->tokenizer, "byte, char, or a tokenizer file");
  prepare.option("--format", settings->format, "auto, text or jsonl");
  prepare.option("--text-key", settings->text_key, "Key of the text in JSON lines");
  prepare.option("--val-fraction", settings->val_fraction, 0, "Held back for validation");
  prepare.option("--shard-tokens", settings->shard_tokens, 1,
                 "Tokens of a file; more go into the next one");
  prepare.flag("--append-eos,!--no-append-eos", settings->append_eos,
               "End each document with the tokenizer's end-of-sequence id (default: on)");
  prepare.run(action, [settings, out] {
    settings->out = *out;
    const PrepareReport report = prepare_data(*settings);
    fmt::print("{} documents, {} training and {} validation tokens, vocabulary {}; {} holds {}\n",
               report.documents, report.train_tokens, report.val_tokens, report.vocab_size, *out,
               fmt::join(report.files, ", "));
    return 0;
  });
}

}  // namespace fp8train
