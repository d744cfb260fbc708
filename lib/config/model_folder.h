#pragma once
// Defaults that the folder of model.from gives to other keys.

#include <string>

#include "config/settings.h"

namespace fp8train {

/// Returns the default of data.tokenizer: the folder itself where it has a tokenizer and a training
/// source needs one; else that of DataSettings.
std::string usual_tokenizer(const Settings& settings);

/// Returns the default of data.seq_length: that of StepSettings, but at most the context that
/// config.json in the folder of model.from names.
int64_t usual_seq_length(const Settings& settings);

}  // namespace fp8train
