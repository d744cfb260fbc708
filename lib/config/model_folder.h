#pragma once
// Defaults that the folder of model.from gives to other keys.

#include <string>

#include "config/settings.h"

namespace fp8train {

/// The default of data.tokenizer: the folder itself where it has a tokenizer and a training source
/// needs one.
std::string usual_tokenizer(const Settings& settings);

/// The default of data.seq_length where model.from is given: at most the context that the folder's
/// config.json names.
int64_t usual_seq_length(const Settings& settings);

}  // namespace fp8train
