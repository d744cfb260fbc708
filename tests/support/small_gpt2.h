#pragma once
// The settings of tests that train GPT-2 (small_gpt2_model()), with the batches of small_llama().

#include <string>

#include "support/small_llama.h"

namespace fp8train::test {

inline EngineSettings small_gpt2(const std::string& plan) {
  EngineSettings settings = small_llama(plan);
  settings.model = small_gpt2_model();
  return settings;
}

}  // namespace fp8train::test
