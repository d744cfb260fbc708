#pragma once
// What must hold between settings.

#include "config/given_keys.h"
#include "config/problems.h"
#include "config/settings.h"

namespace fp8train {

/// Drops the keys of a lower layer that a key of a higher one replaces.
void drop_replaced_keys(GivenKeys& given);

/// Adds every contradiction between settings to `problems`, at the key that was written.
void check_settings(const Settings& settings, const GivenKeys& given, Problems& problems);

}  // namespace fp8train
