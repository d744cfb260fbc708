#pragma once
// The order of pipeline stages from a file.

#include "parallel/layout.h"

namespace fp8train {

/// Reads parallelism.schedule_file, if there is one, for steps of so many micro-batches into
/// ParallelLayout::given_schedule. Throws DataError where it cannot be read, ConfigError with its
/// line, stage and action where it is no schedule of the layout.
void read_schedule_file(int64_t micro_batches, ParallelLayout& layout);

}  // namespace fp8train
