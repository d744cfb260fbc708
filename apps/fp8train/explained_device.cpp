#include "explained_device.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "engine/dry_run.h"
#include "overview.h"
#include "train/preflight.h"
#include "train/session.h"

namespace fp8train {

ExplainedDevice explained_device(const Settings& settings) {
  const std::string missing = settings.device == DeviceChoice::cuda && !settings.job.names_gpu()
                                  ? why_cuda_is_unusable()
                                  : "";
  if (!missing.empty()) {
    return {nullptr,
            {},
            "a GPU",
            fmt::format("not known ({}): which products it has is left open; set job.gpu", missing),
            false};
  }
  std::unique_ptr<Device> device;
  std::string reason;
  const RankMemory rank = memory_of_job(settings, [&]() -> const Device& {
    device = choose_device(settings.device, false, reason);
    return *device;
  });
  const std::string line = rank.gpu != nullptr
                               ? fmt::format("{} (job.gpu)", rank.gpu->name)
                               : fmt::format("{} ({})", device->description(), reason);
  return {std::move(device), rank.traits, device_name(rank), line, true};
}

std::string why_refused(const EngineSettings& engine, const ExplainedDevice& device) {
  try {
    if (device.known) {
      plan_weights(engine, device.traits);
    }
  } catch (const DeviceError& error) {
    return fmt::format("On {} the run would stop at once: {}.", device.name, error.what());
  }
  return "";
}

}  // namespace fp8train
