#include "overview.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/quantities.h"
#include "device/cuda/cuda_device.h"
#include "engine/dry_run.h"
#include "model/linear_sites.h"
#include "model/lora.h"
#include "ops/attention/attention.h"
#include "run_products.h"
#include "train/preflight.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// Steps [begin, end) of a run with one plan, or without scaled GEMMs.
struct Steps {
  int64_t begin, end;
  std::string plan;
};

std::vector<Steps> steps_of_stages(const Session& session) {
  std::vector<Steps> all;
  for (const RunStage& stage : session.stages) {
    int64_t begin = stage.begin;
    for (const auto& [from, to] : stage.plain_steps) {
      if (begin < from) {
        all.push_back({begin, from, stage.plan.name});
      }
      all.push_back({from, to, std::string(name_of(stage.plan.activation))});
      begin = to;
    }
    if (begin < stage.end) {
      all.push_back({begin, stage.end, stage.plan.name});
    }
  }
  return all;
}

/// Returns the later plans of a run that continues after `steps_done`, to follow the first one.
std::string describe_stages(const Session& session, int64_t steps_done) {
  std::string text;
  for (const Steps& steps : steps_of_stages(session)) {
    const bool is_named = steps.begin <= steps_done && steps.plan == session.engine.plan.name;
    if (steps.end > steps_done && !is_named) {
      text +=
          fmt::format("; from step {} on {}", std::max(steps.begin, steps_done) + 1, steps.plan);
    }
  }
  return text;
}

std::string describe_steps(const Session& session) {
  const double epochs = session.settings.training.max_epochs;
  return fmt::format("steps   {} of {} tokens ({}{} x {} x {}){}", session.max_steps,
                     session.tokens_per_step(),
                     session.data_ranks > 1 ? fmt::format("{} ranks x ", session.data_ranks) : "",
                     session.engine.step.gradient_accumulation_steps,
                     session.engine.step.micro_batch_size, session.engine.step.seq_length,
                     epochs > 0 ? fmt::format(": {} epoch{} of {} samples", epochs,
                                              epochs == 1 ? "" : "s", session.epoch_samples)
                                : "");
}

}  // namespace

std::string device_name(const RankMemory& rank) {
  return rank.gpu != nullptr ? rank.gpu->name : rank.is_host ? "this CPU" : "this GPU";
}

std::string describe_layout(const Session& session, const Topology& ranks) {
  const MeshShape shape = mesh_shape(session.engine.strategy.layout, ranks);
  const Mesh mesh(shape, 0, nullptr);
  std::string text = strategy_name(strategy_site(session.engine, mesh));
  if (shape.pipeline > 1) {
    text += fmt::format(", {} pipeline stages", shape.pipeline);
  }
  if (shape.tensor > 1) {
    text += fmt::format(", each layer on {} ranks", shape.tensor);
  }
  if (shape.context > 1) {
    text += fmt::format(", each sequence on {} ranks", shape.context);
  }
  if (shape.expert > 1) {
    text += fmt::format(", experts on {} ranks", shape.expert);
  }
  return shape.data * shape.context == 1 ? text
                                         : fmt::format("{}, buckets of {} MiB", text,
                                                       session.engine.strategy.bucket_bytes >> 20);
}

std::string describe_state_copy(const DryRunStep& dry_run) {
  return fmt::format("  and in the host's memory, as a copy for checkpoints, {}",
                     describe_bytes(dry_run.state_copy));
}

std::vector<std::string> describe_memory(const MemoryLedger& planned, size_t nccl_bytes) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (planned.current(category) > 0 && !is_on_host(category)) {
      lines.push_back(fmt::format("  {:<24}{:>12}", name_of(category),
                                  describe_bytes(planned.current(category))));
    }
    if (category == MemoryCategory::communication && nccl_bytes > 0) {
      lines.push_back(fmt::format("    of it NCCL's buffers  {:>12}", describe_bytes(nccl_bytes)));
    }
  }
  lines.push_back(fmt::format("  {:<24}{:>12}", "total", describe_bytes(planned.total())));
  if (planned.on_host() > 0) {
    lines.push_back(fmt::format("  and of each rank in the host's memory: {}",
                                describe_bytes(planned.on_host())));
  }
  return lines;
}

std::string describe_largest(const Session& session, const DryRunStep& dry_run) {
  return dry_run.plan_name == session.engine.plan.name
             ? ""
             : fmt::format("  in the stage of plan {}, which needs the most", dry_run.plan_name);
}

/// Lines about sources that are blended, or that name several files.
std::vector<std::string> describe_sources(const Session& session) {
  const Corpus& corpus = session.data.train;
  double total = 0;
  std::vector<double> epochs;
  if (corpus.is_blend()) {
    epochs = training_samples(session).epochs(session.samples());
    for (const CorpusSource& source : corpus.sources()) total += source.weight;
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < corpus.sources().size(); ++i) {
    const CorpusSource& source = corpus.sources()[i];
    const std::string what =
        fmt::format("{}: {}{} tokens", source.path,
                    source.files > 1 ? fmt::format("{} files, ", source.files) : "",
                    describe_count(source.size));
    if (corpus.is_blend()) {
      lines.push_back(fmt::format("        {:5.1f} % {}, read {:.2f} times",
                                  100 * source.weight / total, what, epochs[i]));
    } else if (source.files > 1) {
      lines.push_back("        " + what);
    }
  }
  return lines;
}

std::string plan_line(const Session& session, const RankMemory& rank, int64_t steps_done) {
  const RunProducts products = products_of(session.engine, rank.traits);
  return fmt::format("plan    {}: {}{}{}", session.engine.plan.name,
                     describe_products(products, device_name(rank)),
                     products.has_scaled() ? " (`fp8train explain` lists them)" : "",
                     describe_stages(session, steps_done));
}

std::vector<std::string> device_lines(const Device& device, const std::string& reason,
                                      int64_t threads) {
  std::vector<std::string> lines = {fmt::format("device  {} ({}), {} thread{}",
                                                device.description(), reason, threads,
                                                threads == 1 ? "" : "s")};
  if (const std::string kernels = ops::attention_kernels(device.stream()); !kernels.empty()) {
    lines.push_back("        attention: " + kernels);
  }
  return lines;
}

std::string describe_parameters(const ModelConfig& model) {
  const auto all = static_cast<double>(parameter_count(model));
  double idle = 0;  // of the experts that a token does not use
  for_each_linear(model, [&](const LinearSite& site) {
    idle += (1 - site.token_share) * static_cast<double>(site.weights());
  });
  return fmt::format("{} parameters{}", describe_count(all),
                     idle > 0 ? fmt::format(" ({} for a token)", describe_count(all - idle)) : "");
}

std::string describe_adapters(const Session& session, const DeviceTraits& traits) {
  const EngineSettings& engine = session.engine;
  if (!engine.model.lora.is_on()) {
    return "";
  }
  const std::unique_ptr<Device> meta = make_meta_device(traits);
  std::unique_ptr<Decoder> decoder;
  try {
    decoder = std::make_unique<Decoder>(*meta, engine.model, engine.plan,
                                        DecoderOptions{.gradients = false});
  } catch (const DeviceError&) {  // what runs on it says so
    return "";
  }
  Decoder& model = *decoder;
  size_t bytes = 0;
  for (const MemoryCategory category : {MemoryCategory::weights, MemoryCategory::master_weights,
                                        MemoryCategory::quantized_weights}) {
    bytes += meta->ledger().current(category);
  }
  int64_t trained = 0;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter->trained) {
      trained += parameter->shape.count();
      bytes -= parameter->stored_value.codes.bytes() + parameter->copy.bytes();
    }
  }
  const LoraSettings& lora = engine.model.lora;
  const auto frozen = static_cast<double>(parameter_count(engine.model) - trained);
  return fmt::format(
      "{} parameters of {} layers, rank {}, times {:.4g}; the others are frozen, linear layers as "
      "{}: {:.3f} bytes of each parameter",
      describe_count(trained), lora_pieces(engine.model).size(), lora.rank, lora.scale(),
      describe(lora.base), static_cast<double>(bytes) / frozen);
}

std::vector<std::string> run_overview(const Session& session, const RankMemory& rank,
                                      const std::vector<std::string>& device,
                                      const DryRunStep& dry_run, int64_t steps_done,
                                      bool by_category) {
  const ModelConfig& model = session.engine.model;
  std::vector<std::string> lines = {
      fmt::format("model   {}: {} layers, {} wide, {} heads ({} kv), {}vocabulary {}",
                  describe_parameters(model), model.num_hidden_layers, model.hidden_size,
                  model.num_attention_heads, model.num_key_value_heads,
                  model.moe.experts > 0
                      ? fmt::format("{} of {} experts, ", model.moe.per_token, model.moe.experts)
                      : "",
                  model.vocab_size),
      plan_line(session, rank, steps_done),
      fmt::format("data    {} training tokens, {} validation tokens, tokenizer {}",
                  describe_count(session.data.train.size()),
                  describe_count(session.data.val.size()), name_of(session.tokenizer->type()))};
  if (const std::string adapters = describe_adapters(session, rank.traits); !adapters.empty()) {
    lines.insert(lines.begin() + 1, "adapter " + adapters);
  }
  for (std::string& line : describe_sources(session)) {
    lines.push_back(std::move(line));
  }
  lines.push_back(describe_steps(session));
  lines.insert(lines.end(), device.begin(), device.end());
  const MemoryLedger planned = memory_of_run(dry_run, rank.is_host);
  if (!by_category) {
    lines.push_back(fmt::format("memory  {}{}", describe_bytes(planned.total()),
                                describe_largest(session, dry_run)));
    return lines;
  }
  lines.push_back("memory" + describe_largest(session, dry_run));
  const std::vector<std::string> memory = describe_memory(planned, dry_run.nccl_bytes);
  lines.insert(lines.end(), memory.begin(), memory.end());
  if (!rank.is_host && dry_run.state_copy > 0) {
    lines.push_back(describe_state_copy(dry_run));
  }
  return lines;
}

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
