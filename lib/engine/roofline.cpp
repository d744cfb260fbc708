#include "engine/roofline.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace fp8train {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kLanes = 32;

double flops_per_second(Arithmetic arithmetic, const GpuKind& gpu, const AchievedShares& shares) {
  struct Rate {
    double GpuKind::*stated;
    double AchievedShares::*share;
  };
  static constexpr Rate kRates[] = {
      {&GpuKind::tera_flops_f32, &AchievedShares::f32},
      {&GpuKind::tera_flops_16bit, &AchievedShares::bits16},
      {&GpuKind::tera_flops_8bit, &AchievedShares::fp8},
      {&GpuKind::tera_flops_8bit, &AchievedShares::fp8_fast},
      {&GpuKind::tera_flops_16bit, &AchievedShares::attention_forward},
      {&GpuKind::tera_flops_16bit, &AchievedShares::attention_backward},
      {&GpuKind::tera_flops_8bit, &AchievedShares::attention_forward_fp8},
      {&GpuKind::tera_flops_8bit, &AchievedShares::attention_backward_fp8}};
  static_assert(std::size(kRates) == static_cast<size_t>(Arithmetic::attention_backward_fp8));
  if (arithmetic == Arithmetic::none) {
    return 0;
  }
  const Rate& rate = kRates[static_cast<size_t>(arithmetic) - 1];
  return gpu.*rate.stated * kTera * shares.*rate.share;
}

/// Throws InternalError for a span around parts of a step that is not one of them.
StepPart step_part_of(const OpCall& call) {
  const std::optional<StepPart> part = value_in(kStepParts, call.part);
  check(part.has_value(), "the outermost span of an operation is a part of the step");
  return *part;
}

bool is_of_layers(const OpTotal& total) {
  return (total.part == StepPart::forward || total.part == StepPart::backward) &&
         !total.is_product() && total.name.rfind("embedding", 0) != 0;
}

void divide(OpTotal& total, int64_t parts) {
  const auto share = static_cast<double>(parts);
  total.calls = (total.calls + parts / 2) / parts;
  total.launches = (total.launches + parts / 2) / parts;
  total.bytes /= share;
  total.flops /= share;
  total.seconds /= share;
}

/// Copies in a stream of their own take the time by which they are longer than the other operations
/// of their part.
void hide_copies(std::vector<OpTotal>& operations) {
  for (OpTotal& copies : operations) {
    if (copies.name != kSideCopy) {
      continue;
    }
    double others = 0;
    for (const OpTotal& total : operations) {
      others += total.part == copies.part && total.name != kSideCopy ? total.seconds : 0.0;
    }
    copies.seconds = std::max(0.0, copies.seconds - others);
  }
}

}  // namespace

const char* name_of(Bound bound) {
  constexpr const char* kNames[] = {"memory", "flops", "instructions", "launches"};
  return kNames[static_cast<size_t>(bound)];
}

OpTime roofline(const OpWork& work, const StepRates& rates) {
  check(work.flops == 0 || work.arithmetic != Arithmetic::none,
        "an operation with FLOPs says their arithmetic");
  const AchievedShares& shares = rates.shares;
  const std::optional<MeasuredRate> measured =
      work.product.m > 0 ? rates.measured.rate(work.product) : std::nullopt;
  const bool of_shape = measured.has_value() && measured->source == RateSource::shape;
  // Reads and writes of the host's memory follow each other, as if the link had one direction.
  const double host = work.bytes.on_host / (rates.gpu->host_rate * kGiga * shares.wire);
  const double memory = of_shape
                            ? 0.0
                            : std::max(host, (work.bytes.all - work.bytes.on_host) /
                                                 (rates.gpu->memory_rate * kGiga * shares.memory));
  const double flops_rate = measured.has_value()
                                ? measured->flops_per_second
                                : flops_per_second(work.arithmetic, *rates.gpu, shares);
  const double flops = work.flops > 0 ? work.flops / flops_rate : 0.0;
  const double per_element = work.kernel != nullptr && rates.instructions != nullptr
                                 ? rates.instructions(work.kernel)
                                 : 0.0;
  const double issue = work.elements * per_element / kLanes /
                       (rates.gpu->warp_instruction_rate() * shares.instructions);
  const double launches = work.launches * shares.launch_seconds;
  const double longest = std::max({memory, flops, issue});
  const Bound bound = launches > longest  ? Bound::launches
                      : longest == memory ? Bound::memory
                      : longest == flops  ? Bound::flops
                                          : Bound::instructions;
  return {longest + launches, bound, measured.has_value() ? measured->source : RateSource::assumed};
}

void OpTotal::add(const OpTotal& other) {
  calls += other.calls;
  launches += other.launches;
  bytes += other.bytes;
  flops += other.flops;
  seconds += other.seconds;
  if (other.longest > longest) {
    longest = other.longest;
    bound = other.bound;
  }
}

double StepModel::seconds_of(StepPart part) const {
  double seconds = 0;
  for (const OpTotal& total : operations) {
    seconds += total.part == part ? total.seconds : 0.0;
  }
  return seconds;
}

DeviceTraits traits_of(const GpuKind& gpu) {
  return cuda_traits(gpu.capability, static_cast<size_t>(gpu.memory_gib * (1 << 30)));
}

StepModel model_step(const OpLog& calls, const EngineSettings& settings, const StepRates& rates) {
  StepModel model;
  model.step.name = "step";
  model.micro_batch.name = "micro-batch";
  model.layer.name = "layer";
  for (const OpCall& call : calls) {
    const OpTime time = roofline(call.work, rates);
    const auto times = static_cast<double>(call.times);
    const OpTotal one = {.part = step_part_of(call),
                         .name = call.name,
                         .calls = call.times,
                         .launches = call.times * call.work.launches,
                         .bytes = times * call.work.bytes.all,
                         .flops = times * call.work.flops,
                         .seconds = times * time.seconds,
                         .arithmetic = call.work.arithmetic,
                         .longest = time.seconds,
                         .bound = time.bound};
    if (call.work.product.m > 0) {
      model.gemms_by_source[static_cast<size_t>(time.source)] += call.times;
    }
    const auto same = [&](const OpTotal& total) {
      return total.part == one.part && total.name == one.name;
    };
    const auto found = std::find_if(model.operations.begin(), model.operations.end(), same);
    if (found == model.operations.end()) {
      model.operations.push_back(one);
    } else {
      found->add(one);
    }
  }
  hide_copies(model.operations);
  std::ranges::stable_sort(model.operations, {}, &OpTotal::part);
  for (const OpTotal& total : model.operations) {
    model.step.add(total);
    if (total.part != StepPart::start && total.part != StepPart::update) {
      model.micro_batch.add(total);
    }
    if (is_of_layers(total)) {
      model.layer.add(total);
    }
  }
  divide(model.micro_batch, settings.step.gradient_accumulation_steps);
  divide(model.layer, settings.step.gradient_accumulation_steps * settings.model.num_hidden_layers);
  return model;
}

}  // namespace fp8train
