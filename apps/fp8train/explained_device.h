#pragma once
// The device that `explain` speaks of: the one that the run is for, be it in this machine or not.

#include <memory>
#include <string>

#include "config/settings.h"
#include "device/device.h"
#include "engine/engine.h"

namespace fp8train {

struct ExplainedDevice {
  std::unique_ptr<Device> device;  ///< null: it is not here. Its library is asked by `traits`
  DeviceTraits traits;
  std::string name;    ///< in messages: "h100"
  std::string line;    ///< which one it is
  bool known = false;  ///< false: a GPU, of which nothing is known
};

/// Returns the device that the settings mean. Throws DeviceError where it cannot be opened.
ExplainedDevice explained_device(const Settings& settings);

/// Returns what a run of the engine's settings on the device would be refused for; empty: nothing.
std::string why_refused(const EngineSettings& engine, const ExplainedDevice& device);

}  // namespace fp8train
