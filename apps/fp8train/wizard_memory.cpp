#include "wizard_memory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/topology.h"
#include "device/cuda/cuda_device.h"
#include "train/dry_run.h"
#include "train/preflight.h"
#include "train/progress.h"
#include "train/session.h"

namespace fp8train {
namespace {

bool has_model(const ModelSettings& model) {
  const ModelConfig& config = model.config;
  return !model.from.empty() || (config.hidden_size > 0 && config.num_hidden_layers > 0 &&
                                 config.max_position_embeddings > 0);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

const Device& JobMemory::here(DeviceChoice choice) {
  if (device_ == nullptr || choice_ != choice) {
    std::string reason;
    device_ = choose_device(choice, false, reason);
    choice_ = choice;
  }
  return *device_;
}

std::string JobMemory::line(const Settings& settings) {
  if (!has_model(settings.model)) {
    return {};
  }
  try {
    const int ranks = job_ranks(settings.job);
    const Session session = open_session(settings, false, ranks);
    const RankMemory memory =
        memory_of_job(settings, [&]() -> const Device& { return here(settings.device); });
    const MemoryLedger planned = memory_of_run(
        largest_stage(session,
                      [&](const EngineSettings& engine) {
                        return dry_run_step(
                            engine, memory.traits,
                            Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node)));
                      }),
        memory.is_host);
    const auto needed = static_cast<double>(planned.total());
    if (memory.bytes == 0) {
      return fmt::format("memory per rank: {}", describe_bytes(needed));
    }
    return fmt::format("memory per rank: {} of {}: {}", describe_bytes(needed),
                       describe_bytes(static_cast<double>(memory.bytes)),
                       memory.fits(planned) ? "fits" : "DOES NOT FIT");
  } catch (const Error& error) {
    return fmt::format("memory per rank: not known: {}", first_line(error.what()));
  }
}

std::string JobMemory::obstacle(const Settings& settings) const {
  try {
    open_session(settings, false, job_ranks(settings.job));
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const Error&) {  // files that are perhaps on the machine that trains
  }
  return {};
}

bool JobMemory::on_gpus(const Settings& settings) {
  if (settings.device != DeviceChoice::automatic) {
    return settings.device == DeviceChoice::cuda;
  }
  return settings.job.gpu != "auto" || why_cuda_is_unusable().empty();
}

}  // namespace fp8train
