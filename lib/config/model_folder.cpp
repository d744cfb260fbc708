#include "config/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/text_source.h"
#include "data/tokenizers/registry.h"

namespace fp8train {

std::string usual_tokenizer(const Settings& settings) {
  const std::string& folder = settings.model.from;
  const bool has_one = !folder.empty() && tokenizers::has_tokenizer(folder);
  return has_one && !all_tokens(settings.data.train) ? folder : DataSettings().tokenizer;
}

int64_t usual_seq_length(const Settings& settings) {
  int64_t length = StepSettings().seq_length;
  std::ifstream file(std::filesystem::path(settings.model.from) / "config.json");
  if (settings.model.from.empty() || !file) {
    return length;
  }
  const auto config = nlohmann::json::parse(file, nullptr, false);
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
      length = std::min(length, std::max<int64_t>(1, config[key].get<int64_t>()));
    }
  }
  return length;
}

}  // namespace fp8train
