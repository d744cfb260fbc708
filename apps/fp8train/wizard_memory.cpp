#include "wizard_memory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/machine.h"
#include "comm/topology.h"
#include "device/cuda/cuda_device.h"
#include "train/preflight.h"
#include "train/records/progress.h"
#include "train/session.h"
#include "train/step/dry_run.h"

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

/// How long the run takes on a CPU; empty as long as its length is not known.
std::string time_on_cpu(const Settings& settings) {
  constexpr double kRate = 1e11;  // FLOPs a second: some eight cores
  const Session session = open_session(settings, false, job_ranks(settings.job));
  const double tokens = static_cast<double>(session.tokens_per_step() * session.max_steps);
  if (tokens == 0.0) {
    return "";
  }
  const double flops =
      tokens * flops_per_token(session.engine.model, session.engine.step.seq_length);
  return fmt::format("; {} tokens take about {} at {:.0f} GFLOP/s a rank", describe_count(tokens),
                     describe_duration(flops / kRate / session.data_ranks), kRate / 1e9);
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

RankMemory JobMemory::memory_of(const Settings& settings) {
  return memory_of_job(settings, [&]() -> const Device& { return here(settings.device); });
}

MemoryLedger JobMemory::planned(const Settings& settings, const RankMemory& memory) {
  const int ranks = job_ranks(settings.job);
  const Session session = open_session(settings, false, ranks);
  return memory_of_run(
      largest_stage(session,
                    [&](const EngineSettings& engine) {
                      return dry_run_step(
                          engine, memory.traits,
                          Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node)));
                    }),
      memory.is_host);
}

/// The first that fits of: a smaller micro-batch; with recomputation; with a stage of ZeRO too.
std::string JobMemory::what_would_fit(const Settings& settings, const RankMemory& memory) {
  const int64_t last_stage = job_ranks(settings.job) > 1 ? 3 : settings.parallelism.zero_stage;
  std::string with;
  Settings changed = settings;
  for (;;) {
    for (int64_t size = settings.step.micro_batch_size; size >= 1; size /= 2) {
      changed.step.micro_batch_size = size;
      if (fits(changed, memory)) {
        return size == settings.step.micro_batch_size
                   ? with.substr(2)
                   : fmt::format("training.micro_batch_size {}{}", size, with);
      }
    }
    if (changed.step.decoder.recompute == Recompute::none) {
      changed.step.decoder.recompute = Recompute::block;
      with = ", model.recompute block";
    } else if (++changed.parallelism.zero_stage <= last_stage) {
      with = fmt::format(
          "{}, parallelism.zero_stage {}",
          settings.step.decoder.recompute == Recompute::none ? ", model.recompute block" : "",
          changed.parallelism.zero_stage);
    } else {
      return "";
    }
  }
}

bool JobMemory::fits(const Settings& settings, const RankMemory& memory) {
  try {
    return memory.fits(planned(settings, memory));
  } catch (const Error&) {  // a change is refused together with the other settings
    return false;
  }
}

std::string JobMemory::remedy(const Settings& settings, const RankMemory& memory) {
  const std::string change = what_would_fit(settings, memory);
  if (!change.empty()) {
    const bool several = change.find(", ") != std::string::npos;
    return (several ? "it would with all of: " : "it would with ") + change;
  }
  return job_ranks(settings.job) > 1
             ? "take more ranks, a plan with fewer bytes, or a smaller model"
             : "take several ranks with ZeRO, a plan with fewer bytes, or a smaller model";
}

std::string JobMemory::line(const Settings& settings) {
  if (!has_model(settings.model)) {
    return {};
  }
  if (settings.device == DeviceChoice::cuda && !settings.job.names_gpu() &&
      !why_cuda_is_unusable().empty()) {
    return fmt::format(
        "memory per rank: not known: {}; name the GPU to estimate for (job.gpu: h100, ...)",
        has_nvidia_gpu() ? why_cuda_is_unusable() : "this machine has no GPU");
  }
  try {
    const RankMemory memory = memory_of(settings);
    const MemoryLedger ledger = planned(settings, memory);
    const auto needed = static_cast<double>(ledger.total());
    if (memory.bytes == 0) {
      return fmt::format("memory per rank: {}", describe_bytes(needed));
    }
    const std::string line = fmt::format("memory per rank: {} of {}: ", describe_bytes(needed),
                                         describe_bytes(static_cast<double>(memory.bytes)));
    if (memory.fits(ledger)) {
      return line + "fits" + (memory.is_host ? time_on_cpu(settings) : "");
    }
    return fmt::format("{}DOES NOT FIT; {}", line, remedy(settings, memory));
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
  return settings.job.names_gpu() || why_cuda_is_unusable().empty();
}

}  // namespace fp8train
