// fp8train data: prepares token shards.

#include <fmt/format.h>

#include <memory>

#include "data/prepare.h"
#include "verbs.h"

namespace fp8train {

void add_data(CLI::App& verb, Action& action) {
  verb.require_subcommand(1);
  auto settings = std::make_shared<PrepareSettings>();
  auto out = std::make_shared<std::string>();
  CLI::App* prepare =
      verb.add_subcommand("prepare", "Tokenize text and JSON-lines files into llm.c token shards");
  prepare->add_option("input", settings->inputs, "Files or globs")->required();
  prepare->add_option("--out", *out, "Folder to write")->required();
  prepare->add_option("--tokenizer", settings->tokenizer, "byte, char, or a tokenizer file")
      ->capture_default_str();
  prepare->add_option("--format", settings->format, "auto, text or jsonl")->capture_default_str();
  prepare->add_option("--text-key", settings->text_key, "Key of the text in JSON lines")
      ->capture_default_str();
  prepare->add_option("--val-fraction", settings->val_fraction, "Held back for validation")
      ->capture_default_str();
  prepare->add_option("--shard-tokens", settings->shard_tokens)->capture_default_str();
  prepare->add_flag("--append-eos,!--no-append-eos", settings->append_eos,
                    "End each document with the tokenizer's end-of-sequence id (default: on)");
  prepare->callback([settings, out, &action] {
    action = [settings, out] {
      settings->out = *out;
      const PrepareReport report = prepare_data(*settings);
      fmt::print("{} documents, {} training and {} validation tokens, vocabulary {}; {} holds {}\n",
                 report.documents, report.train_tokens, report.val_tokens, report.vocab_size, *out,
                 fmt::join(report.files, ", "));
      return 0;
    };
  });
}

}  // namespace fp8train
