#pragma once
// How much of a rank's memory the run of a configuration would take, on the hardware that its `job`
// section names; planned on the meta device.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/load.h"
#include "config/settings.h"
#include "device/device.h"
#include "layouts.h"
#include "train/preflight.h"

namespace fp8train {

class JobMemory {
 public:
  /// "memory per rank: 3.1 of 78.5 GiB: fits", or which smaller micro-batch, recomputation or stage
  /// of ZeRO would make it fit; empty while there is no model, and why where it
  /// cannot be said.
  std::string line(const Settings& settings);

  /// Why the run would be refused wherever it is started, or on the GPU that the job names;
  /// empty: nothing.
  std::string obstacle(const Settings& settings);

  struct Recommendation {
    std::string plan, reason;
  };
  /// The plan for the device of the run, with the least risk.
  Recommendation recommended_plan(const Settings& settings);

  /// The recommended plan, and which plans the job's GPU multiplies in 16 bits or refuses, if that
  /// is known.
  std::string plans(const Settings& settings);

  /// The answers with which a run fits that does not, or none if there are no such answers;
  /// nothing: it fits, or it is not known which machine it is for.
  std::optional<std::vector<Answer>> fitting(const Settings& settings);

  /// The value of one of the keys that lay a run of several GPUs over them, in the fastest layout
  /// with the micro-batch and those of these keys that have been answered; empty: another key, or
  /// not known.
  std::string of_fastest_layout(const std::string& key, const Settings& settings);

  /// The change with which a run fits that does not: "it would with ...", or general advice.
  std::string remedy(const Settings& settings, const RankMemory& memory);

  /// About how many seconds the whole run takes, without its evaluations; 0: that is not known.
  double duration(const Settings& settings);

  /// Whether each rank has a GPU.
  bool on_gpus(const Settings& settings);

 private:
  /// Whether it is known which GPU the run is for.
  bool knows_gpu(const Settings& settings);
  const Device& here(DeviceChoice choice);
  RankMemory memory_of(const Settings& settings);
  /// The memory of a rank of the run. Throws what open_session() throws.
  MemoryLedger planned(const Settings& settings, const RankMemory& memory);
  bool fits(const Settings& settings, const RankMemory& memory);
  const std::vector<Layout>& layouts_of(Settings settings);
  const std::vector<Answer>& what_would_fit(const Settings& settings, const RankMemory& memory);
  std::vector<Answer> search_what_fits(const Settings& settings, const RankMemory& memory);

  std::unique_ptr<Device> device_;  // of this machine, as `choice_` says
  DeviceChoice choice_ = DeviceChoice::automatic;
  std::optional<Settings> asked_;  // what what_would_fit() was asked for last
  std::vector<Answer> would_fit_;
  std::optional<Settings> laid_;  // what the layouts were searched for last
  std::vector<Layout> layouts_;
};

}  // namespace fp8train
