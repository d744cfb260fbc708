#include "wizard_memory.h"

#include <fmt/format.h>

#include "base/error.h"
#include "comm/topology.h"
#include "device/cuda/cuda_device.h"
#include "device/gpu_kinds.h"
#include "train/progress.h"
#include "train/session.h"

namespace fp8train {
namespace {

constexpr double kGib = 1 << 30;

int ranks_of(const JobSettings& job) {
  return static_cast<int>(job.nodes * job.ranks_per_node);
}

bool has_model(const ModelSettings& model) {
  const ModelConfig& config = model.config;
  return !model.from.empty() || (config.hidden_size > 0 && config.num_hidden_layers > 0 &&
                                 config.max_position_embeddings > 0);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

const Device& JobMemory::here(const std::string& setting) {
  if (device_ == nullptr || setting_ != setting) {
    std::string reason;
    device_ = choose_device(setting, false, reason);
    setting_ = setting;
  }
  return *device_;
}

JobMemory::Room JobMemory::room_of(const Settings& settings) {
  const JobSettings& job = settings.job;
  if (const GpuKind* kind = settings.device == "cpu" ? nullptr : find_gpu_kind(job.gpu)) {
    return {cuda_traits(kind->capability), kind->memory_gib * kGib};
  }
  const Device& device = here(settings.device);
  const auto available =
      static_cast<double>(device.available_memory() + device.traits().library_workspace);
  if (device.kind() == DeviceKind::cuda) {
    return {device.traits(), available};
  }
  const bool other_node = settings.device == "cpu" && job.memory_gib > 0;
  const double node = other_node ? job.memory_gib * kGib : available;
  return {device.traits(), node / static_cast<double>(job.ranks_per_node)};
}

std::string JobMemory::line(const Settings& settings) {
  if (!has_model(settings.model)) {
    return {};
  }
  try {
    const int ranks = ranks_of(settings.job);
    const Session session = open_session(settings, false, ranks);
    const Room room = room_of(settings);
    MemoryLedger planned;
    plan_step(session.engine, room.traits, &planned, nullptr,
              Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node)));
    const auto needed = static_cast<double>(planned.total());
    if (room.bytes == 0) {
      return fmt::format("memory per rank: {}", describe_bytes(needed));
    }
    return fmt::format("memory per rank: {} of {}: {}", describe_bytes(needed),
                       describe_bytes(room.bytes), needed <= room.bytes ? "fits" : "DOES NOT FIT");
  } catch (const Error& error) {
    return fmt::format("memory per rank: not known: {}", first_line(error.what()));
  }
}

std::string JobMemory::obstacle(const Settings& settings) const {
  try {
    open_session(settings, false, ranks_of(settings.job));
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const Error&) {  // files that are perhaps on the machine that trains
  }
  return {};
}

bool JobMemory::on_gpus(const Settings& settings) {
  if (settings.device != "auto") {
    return settings.device == "cuda";
  }
  return settings.job.gpu != "auto" || why_cuda_is_unusable().empty();
}

}  // namespace fp8train
