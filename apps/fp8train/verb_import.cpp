// fp8train import: models of other programs become Hugging Face folders that model.from and
// generate take.

#include <fmt/format.h>

#include <memory>

#include "io/llama2c.h"
#include "verbs.h"

namespace fp8train {
namespace {

struct ImportOptions {
  std::string model, tokenizer, out;
};

}  // namespace

void add_import(CLI::App& verb, Action& action) {
  verb.require_subcommand(1);
  auto options = std::make_shared<ImportOptions>();
  CLI::App* llama2c = verb.add_subcommand("llama2c", "A model.bin of llama2.c (version 0)");
  llama2c->add_option("model", options->model, "model.bin")->required();
  llama2c->add_option("--tokenizer", options->tokenizer, "tokNNN.bin that belongs to it");
  llama2c->add_option("--out", options->out, "Folder to write")->required();
  llama2c->callback([options, &action] {
    action = [options] {
      import_llama2c(options->model, options->tokenizer, options->out);
      fmt::print("wrote {}\n", options->out);
      return 0;
    };
  });
}

}  // namespace fp8train
