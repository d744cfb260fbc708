#pragma once
// A trained model opened for generation or evaluation: from a Hugging Face folder, a checkpoint, or
// a run directory (its newest valid checkpoint).

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli.h"
#include "data/tokenizer.h"
#include "engine/engine.h"

namespace fp8train {

struct CheckpointRequest {
  std::string path;
  std::string tokenizer;  ///< empty: tokenizer.json of the folder
  std::string plan = "fp32";
  std::string device = "auto";
  /// Settings of the engine. A seq_length of 0 means the model's context. The seed is fixed, so
  /// that stochastic rounding repeats.
  StepSettings step = {.seq_length = 0, .micro_batch_size = 1, .seed = 0};
  int64_t threads = 0;
};

/// The folder itself where it is a model folder, else the newest valid checkpoint of a run
/// directory. Throws CheckpointError where it is neither; of a folder of runs the error names them.
std::filesystem::path find_model_folder(const std::filesystem::path& path);

/// The same, with every hash of a checkpoint compared.
std::filesystem::path find_whole_model(const std::filesystem::path& path);

/// The facts of a model before its weights are read.
struct CheckpointFacts {
  std::string folder;
  std::unique_ptr<Tokenizer> tokenizer;
  ModelConfig model;
  std::vector<int64_t> eos_token_ids;  ///< all that end a text
  int64_t longest_sequence = 0;
};

struct CheckpointModel : CheckpointFacts {
  explicit CheckpointModel(CheckpointFacts facts) : CheckpointFacts(std::move(facts)) {}

  std::unique_ptr<Device> device;
  std::unique_ptr<Engine> engine;
  /// False: a plan with delayed scaling whose scales the folder does not hold, or holds for
  /// other layers or histories.
  bool has_scales = true;
};

/// Declares the options of a request that commands share: all but those of sequences.
void add_checkpoint_options(Arguments command, CheckpointRequest& request);

/// Throws ConfigError, DataError or CheckpointError.
CheckpointFacts describe_checkpoint(const CheckpointRequest& request);

/// Throws ConfigError, DataError or CheckpointError.
CheckpointModel open_checkpoint(const CheckpointRequest& request);

}  // namespace fp8train
