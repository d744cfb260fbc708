#pragma once
// Checks of settings against each other, which run after each field has been read by itself.

#include "config/settings.h"
#include "config/yaml/given_keys.h"
#include "config/yaml/problems.h"

namespace fp8train {

/// whole: a run is to be started. begun: it is being planned; keys that must be given may follow,
/// and what the `job` section says of its ranks counts.
enum class Extent { whole, begun };

/// Adds every contradiction between settings to `problems`, at the key that was written.
void check_settings(const Settings& settings, const GivenKeys& given, Problems& problems,
                    Extent extent = Extent::whole);

}  // namespace fp8train
