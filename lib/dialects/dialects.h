#pragma once
// Keys of other programs in a configuration: what Accelerate writes as `fp8_config`, DeepSpeed's
// `fp8.enabled`, Megatron's `fp8_...` and `first_last_layers_bf16`. They are rewritten to this
// program's keys before the table of fields reads them, and each is reported in one line; what has
// no meaning here is a problem, unless it says nothing about precision.

#include <memory>

#include "config/foreign_keys.h"

namespace fp8train {

/// LoadRequest::foreign_keys: all dialects.
std::unique_ptr<ForeignKeys> make_dialects(Problems& problems);

}  // namespace fp8train
