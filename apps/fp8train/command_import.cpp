// fp8train import: models of other programs become Hugging Face folders that model.from and
// generate take.

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/screen.h"
#include "commands.h"
#include "io/llama2c.h"

namespace fp8train {
namespace {

struct ImportOptions {
  std::string model, tokenizer, out;
};

}  // namespace

void add_import(Arguments command, Action& action) {
  auto options = std::make_shared<ImportOptions>();
  Arguments llama2c = command.part("llama2c", "A model.bin of llama2.c (version 0)",
                                   "fp8train import llama2c model.bin --out model");
  llama2c.required_path("model MODEL", options->model, "model.bin");
  llama2c.path("--tokenizer", options->tokenizer, "tokNNN.bin that belongs to it");
  llama2c.required_path("--out FOLDER", options->out, "Folder to write", PathUse::output);
  llama2c.run(action, [options] {
    if (std::filesystem::exists(std::filesystem::path(options->out) / "config.json")) {
      throw ConfigError(options->out + " holds a model already; choose another --out");
    }
    import_llama2c(options->model, options->tokenizer, options->out);
    print_fitted("wrote {}{}\n", options->out,
                 options->tokenizer.empty()
                     ? " (without a tokenizer: `generate` and `eval` then need --tokenizer)"
                     : "");
    return 0;
  });
}

}  // namespace fp8train
