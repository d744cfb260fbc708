#pragma once
// Defaults that the folder of model.from gives to other keys.

#include <string>

#include "base/math.h"
#include "config/settings.h"

namespace fp8train {

/// Returns the default of data.tokenizer: the folder itself where it has a tokenizer and a training
/// source needs one; else that of DataSettings.
std::string usual_tokenizer(const Settings& settings);

/// Returns the default of data.seq_length: that of StepSettings, but at most the context that
/// config.json in the folder of model.from names.
int64_t usual_seq_length(const Settings& settings);

/// Returns the default of optimizer.lr: one for a model that is trained already, unless the
/// optimizer is one of other rates (sgd); without a folder that of OptimizerSettings.
double usual_rate(const Settings& settings);

/// Returns the default steps of warm-up of a run that continues the training of model.from.
constexpr int64_t continued_warmup(int64_t max_steps) {
  return ceil_div(3 * max_steps, 100);
}

/// Returns the steps of warm-up that a run of planned_steps() begins with; 0 where their number is
/// not known. Without a folder the wizard's offer.
int64_t usual_warmup(const Settings& settings);

}  // namespace fp8train
