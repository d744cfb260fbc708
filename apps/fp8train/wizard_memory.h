#pragma once
// How much of a rank's memory the run of a configuration would take, on the hardware that its `job`
// section names; planned on the meta device.

#include <memory>
#include <optional>
#include <string>

#include "config/settings.h"
#include "device/device.h"
#include "train/preflight.h"

namespace fp8train {

class JobMemory {
 public:
  /// "memory per rank: 3.1 of 78.5 GiB: fits", or which smaller micro-batch, recomputation or stage
  /// of ZeRO would make it fit; empty while there is no model, and why where it
  /// cannot be said.
  std::string line(const Settings& settings);

  /// What the run would be refused for wherever it is started; empty: nothing.
  std::string obstacle(const Settings& settings) const;

  /// What would make a run fit that does not: "it would with ...", or general advice.
  std::string remedy(const Settings& settings, const RankMemory& memory);

  /// Whether each rank has a GPU.
  bool on_gpus(const Settings& settings);

 private:
  const Device& here(DeviceChoice choice);
  RankMemory memory_of(const Settings& settings);
  /// What a rank of the run takes. Throws what open_session() throws.
  MemoryLedger planned(const Settings& settings, const RankMemory& memory);
  bool fits(const Settings& settings, const RankMemory& memory);
  std::string what_would_fit(const Settings& settings, const RankMemory& memory);

  std::unique_ptr<Device> device_;  // of this machine, as `choice_` says
  DeviceChoice choice_ = DeviceChoice::automatic;
};

}  // namespace fp8train
