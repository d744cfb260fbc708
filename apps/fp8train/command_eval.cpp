// fp8train eval: the loss of a trained model on a text or token file, in any precision plan.

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "checkpoint_model.h"
#include "commands.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "train/dry_run.h"

namespace fp8train {
namespace {

struct EvalOptions {
  CheckpointRequest model;
  std::string data;
  int64_t calibrate = 8;
  bool json = false;
};

int evaluate(EvalOptions options) {
  options.model.micro_batch_size = 16;
  CheckpointModel opened = open_checkpoint(options.model);
  Engine& engine = *opened.engine;
  engine.reserve(dry_run_step(engine.settings(), engine.device()).plan);
  DataSettings data;
  data.train = {{options.data, "auto", 1.0}};
  CorpusSplits splits = open_corpora(data, *opened.tokenizer, engine.settings().model.vocab_size);
  if (!splits.train.form().is_windows()) {
    splits.train.set_form({.packing = Packing::none});  // the engine masks no documents
  }
  ValidationBatches batches(splits.train, engine.settings().micro_batch_size,
                            engine.settings().seq_length);
  if (!opened.has_scales) {
    for (int64_t i = 0; i < options.calibrate; ++i) {
      const std::optional<Batch> batch = batches.next();
      if (!batch) {
        break;
      }
      engine.calibrate(*batch);
    }
    batches.rewind();
  }
  engine.begin_evaluation();
  while (const std::optional<Batch> batch = batches.next()) {
    engine.evaluate(*batch);
  }
  const LossReport loss = engine.evaluation_loss();
  if (loss.targets == 0) {
    throw DataError(fmt::format("{} has {} tokens: a loss needs two at least", options.data,
                                splits.train.size()));
  }
  if (options.json) {
    fmt::print("{{\"plan\": \"{}\", \"loss\": {:.8f}, \"perplexity\": {:.6f}, \"tokens\": {}}}\n",
               options.model.plan, loss.mean, std::exp(loss.mean), loss.targets);
  } else {
    fmt::print("{}: loss {:.6f}, perplexity {:.4f} over {} tokens in windows of {}\n",
               options.model.plan, loss.mean, std::exp(loss.mean), loss.targets,
               engine.settings().seq_length);
  }
  return 0;
}

}  // namespace

void add_eval(Arguments command, Action& action) {
  auto options = std::make_shared<EvalOptions>();
  command.required("--checkpoint", options->model.path,
                   "Run directory, checkpoint or Hugging Face folder");
  command.required("--data", options->data, "Text, JSON lines or token file");
  command.option("--plan", options->model.plan,
                 "Precision plan to run in, whatever it was trained in");
  command.option("--seq-length", options->model.seq_length, 0, "0: the model's context");
  command.option(
      "--calibrate", options->calibrate, 0,
      "Batches that set the scales of a plan with delayed scaling when the folder has none");
  command.option("--tokenizer", options->model.tokenizer, "Tokenizer, when the folder has none");
  command.option("--device", options->model.device, "cpu, cuda or auto");
  command.option("--threads", options->model.threads, 0, "0: all cores");
  command.flag("--json", options->json, "As JSON");
  command.run(action, [options] { return evaluate(*options); });
}

}  // namespace fp8train
