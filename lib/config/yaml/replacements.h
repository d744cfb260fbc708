#pragma once
// Replacement of keys: a key that excludes others replaces those of earlier files and settings.

#include <string>

#include "config/yaml/given_keys.h"
#include "config/yaml/problems.h"

namespace fp8train {

/// Whether the key is one of the shape that model.preset and model.from have.
bool describes_shape(const std::string& key);

/// Removes each key that one of a higher layer contradicts, and notes it:
/// - max_steps, max_tokens and max_epochs, gradient_accumulation_steps and global_batch_size,
/// data.val and
///   data.val_fraction (but for val_fraction: 0), model.preset and model.from exclude each other;
/// - model.from has the shape, so that it replaces the fields of `model` that describe one;
/// - mixed_precision replaces precision.plan, and, other than fp8, the section fp8 and
///   precision.schedule;
/// - precision.plan replaces the keys of the section fp8 that select a plan, and, where it scales
///   nothing, the whole section and precision.schedule; a key that selects a plan there replaces
///   precision.plan.
void replace_contradicted(GivenKeys& given, const Problems& problems);

/// Removes and notes the options of lower layers that have no meaning for the plan selected. All
/// that selects one must have been given.
void replace_meaningless(GivenKeys& given, const Problems& problems);

}  // namespace fp8train
