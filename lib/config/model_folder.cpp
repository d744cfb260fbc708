#include "config/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_reader.h"
#include "config/fields/field_table.h"
#include "data/text_source.h"
#include "data/tokenizers/registry.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

/// Null where it cannot be read, which is an error of those that need the model.
nlohmann::json config_json_in(const std::filesystem::path& folder) {
  try {
    return read_json_file(folder / "config.json");
  } catch (const DataError&) {
    return {};
  }
}

}  // namespace

std::string usual_tokenizer(const Settings& settings) {
  const std::string& folder = settings.model.from;
  const bool has_one = !folder.empty() && tokenizers::has_tokenizer(folder);
  return has_one && !all_tokens(settings.data.train) ? folder : DataSettings().tokenizer;
}

int64_t usual_seq_length(const Settings& settings) {
  int64_t length = StepSettings().seq_length;
  if (settings.model.from.empty()) {
    return length;
  }
  const auto config = config_json_in(settings.model.from);
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
      length = std::min(length, std::max<int64_t>(1, config[key].get<int64_t>()));
    }
  }
  return length;
}

double usual_rate(const Settings& settings) {
  // Below the 2e-5 with which Alpaca and Vicuna tune Llama 7B, with the same warm-up over 3 % of
  // the steps (tatsu-lab/stanford_alpaca and lm-sys/FastChat: README.md); of IST-DASLab/llmq the
  // default.
  constexpr double kContinuedRate = 1e-5;
  constexpr double kAdapterRate = 2e-4;  // of LoRA (arXiv 2106.09685, table 11) and QLoRA
  const bool adapts = optimizer_named(settings.optimizer.name).normalizes_gradients;
  const bool has_adapters = settings.model.config.lora.is_on() || !settings.model.lora_from.empty();
  if (has_adapters && adapts) {
    return kAdapterRate;
  }
  return settings.model.from.empty() || !adapts ? OptimizerSettings().lr : kContinuedRate;
}

int64_t usual_warmup(const Settings& settings) {
  const int64_t steps = planned_steps(settings);
  return settings.model.from.empty() ? std::min<int64_t>(steps / 20, 2000)
                                     : continued_warmup(steps);
}

}  // namespace fp8train
