#pragma once
// Keys of other programs in a configuration: files of `accelerate config`, DeepSpeed's
// configurations, Megatron's `fp8_...`, `first_last_layers_bf16` and precision file. They are
// rewritten to this program's keys before the table of fields reads them, and each is reported;
// those without a meaning here share one line. An unsupported key that would change the run is a
// problem.

#include <memory>

#include "config/yaml/foreign_keys.h"

namespace fp8train {

/// Makes all dialects, for LoadRequest::foreign_keys.
std::unique_ptr<ForeignKeys> make_dialects(Problems& problems);

}  // namespace fp8train
