// The optimizer, the schedule and the batches of a configuration of DeepSpeed (docs/_pages/
// config-json.md, deepspeed/runtime/engine.py, deepspeed/runtime/lr_schedules.py).

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

constexpr ForeignKey kOptimizerKeys[] = {{"lr", Meaning::ours, "optimizer.lr"},
                                         {"betas", Meaning::ours, "optimizer.betas"},
                                         {"eps", Meaning::ours, "optimizer.eps"},
                                         {"weight_decay", Meaning::ours, "optimizer.weight_decay"},
                                         {"momentum", Meaning::ours, "optimizer.momentum"},
                                         {"amsgrad", Meaning::off, kOtherTraining},
                                         {"nesterov", Meaning::off, kOtherTraining},
                                         {"adam_w_mode", Meaning::special},
                                         {"bias_correction", Meaning::special},
                                         {"max_grad_norm", Meaning::off, "use gradient_clipping"}};
constexpr ForeignTable kOptimizer = {kOptimizerKeys, "torch_adam fused foreach"};

/// The defaults of an optimizer's keys (DeepSpeed, ops/adam/fused_adam.py;
/// torch.optim.SGD).
constexpr Words kAdamDefaults[] = {{"lr", "1e-3"}, {"eps", "1e-8"}, {"weight_decay", "0"}};
constexpr Words kSgdDefaults[] = {{"lr", "1e-3"}, {"momentum", "0"}, {"weight_decay", "0"}};

constexpr ForeignKey kScheduleKeys[] = {
    {"warmup_max_lr", Meaning::ours, "optimizer.lr"},
    {"warmup_num_steps", Meaning::ours, "scheduler.warmup_steps"},
    {"total_num_steps", Meaning::ours, "training.max_steps"},
    {"warmup_min_lr", Meaning::special},
    {"warmup_min_ratio", Meaning::special},
    {"warmup_type", Meaning::special},
    {"cos_min_ratio", Meaning::special}};
constexpr ForeignTable kSchedule = {kScheduleKeys, "last_batch_iteration"};

/// WarmupCosineLR's own default.
constexpr double kCosineMinRatio = 1e-4;

constexpr Words kSchedules[] = {
    {"warmuplr", "constant"}, {"warmupdecaylr", "linear"}, {"warmupcosinelr", "cosine"}};

}  // namespace

void Pass::deepspeed_optimizer(const Entry& entry) {
  const YamlNode& type = *value_of(entry.node, "type");
  const std::string name = simplified(type.text);
  const Entry type_entry = {"type", entry.spelled + ".type", entry.key, type};
  const bool adam = name == "adam" || name == "adamw" || name == "fusedadam";
  if (!adam && name != "sgd") {
    complain(type_entry, fmt::format("expected Adam, AdamW or SGD, got {}; Muon and its options "
                                     "are in optimizer.name and optimizer.muon",
                                     describe(type)));
    return;
  }
  put("optimizer.name", type_entry, scalar(adam ? "adamw" : "sgd", type));
  const YamlNode* params = value_of(entry.node, "params");
  const YamlNode none;
  const Entry inner = {"params", entry.spelled + ".params", entry.key,
                       params == nullptr ? none : *params};
  bool decoupled = true;
  section(inner, kOptimizer, "", [&](const ForeignKey& key, const Entry& it) {
    const auto value = flag(it);
    if (key.name == "adam_w_mode") {
      decoupled = value.value_or(true) || name == "adamw";
      without_meaning(it);
    } else if (value == false) {
      complain(it, "moments are always corrected for their bias here; remove it");
    } else {
      without_meaning(it);
    }
  });
  const YamlNode* decay = value_of(inner.node, "weight_decay");
  if (!decoupled && decay != nullptr && !is_off(*decay) && parse_number(decay->text) != 0.0) {
    complain(inner,
             "weight decay that is added to the gradient (adam_w_mode: false) is not here; "
             "set it to 0, or take AdamW");
  }
  // DeepSpeed's defaults are not those of this program.
  const std::span<const Words> defaults =
      adam ? std::span<const Words>(kAdamDefaults) : kSgdDefaults;
  for (const auto& [key, value] : defaults) {
    if (value_of(inner.node, key) == nullptr) {
      put(fmt::format("optimizer.{}", key), type_entry, scalar(std::string(value), type),
          " (DeepSpeed's default)");
    }
  }
  if (adam && value_of(inner.node, "betas") == nullptr) {
    YamlNode betas = scalar("", type);
    betas.kind = Kind::sequence;
    betas.items = {scalar("0.9", type), scalar("0.999", type)};
    put("optimizer.betas", type_entry, betas, " (DeepSpeed's default)");
  }
}

void Pass::deepspeed_schedule(const Entry& entry) {
  const YamlNode& type = *value_of(entry.node, "type");
  const Entry type_entry = {"type", entry.spelled + ".type", entry.key, type};
  const auto found = find_in(kSchedules, simplified(type.text));
  if (found == std::end(kSchedules)) {
    complain(type_entry, fmt::format("expected WarmupLR, WarmupDecayLR or WarmupCosineLR, got {}",
                                     describe(type)));
    return;
  }
  put("scheduler.type", type_entry, scalar(std::string(found->second), type));
  if (const YamlNode* params = value_of(entry.node, "params")) {
    const Entry inner = {"params", entry.spelled + ".params", entry.key, *params};
    section(inner, kSchedule, "",
            [&](const ForeignKey&, const Entry& it) { schedule_parameter(it, *params); });
  }
  const YamlNode none;
  const YamlNode* given = value_of(entry.node, "params");
  const YamlNode& params = given == nullptr ? none : *given;
  const YamlNode* form = value_of(params, "warmup_type");
  if (form == nullptr || form->text == "log") {
    tell(
        fmt::format("{}: the learning rate rises linearly in the warm-up here, and with the "
                    "logarithm of the step in DeepSpeed (warmup_type: log)",
                    type_entry.spelled));
  }
  const auto put_default = [&](std::string_view name, std::string_view key, std::string value) {
    if (value_of(params, name) == nullptr) {
      put(key, type_entry, scalar(std::move(value), type), " (DeepSpeed's default)");
    }
  };
  put_default("warmup_num_steps", "scheduler.warmup_steps", "1000");
  if (found->first != "warmupcosinelr") {
    put_default("warmup_max_lr", "optimizer.lr", "0.001");
  } else if (const auto peak = peak_of(params)) {
    put_default("cos_min_ratio", "scheduler.min_lr", fmt::format("{}", kCosineMinRatio * *peak));
  }
}

/// The learning rate at the end of the warm-up, where the file gives it.
std::optional<double> Pass::peak_of(const YamlNode& schedule) const {
  const YamlNode* lr = value_of(schedule, "warmup_max_lr");
  const YamlNode* optimizer = value_of(root_, "optimizer");
  const YamlNode* values = optimizer == nullptr ? nullptr : value_of(*optimizer, "params");
  lr = lr == nullptr && values != nullptr ? value_of(*values, "lr") : lr;
  return lr == nullptr ? std::nullopt : parse_number(lr->text);
}

void Pass::schedule_parameter(const Entry& entry, const YamlNode& params) {
  const auto value = parse_number(entry.node.text);
  const bool is_start = entry.name == "warmup_min_lr" || entry.name == "warmup_min_ratio";
  if (entry.name == "warmup_type" || (is_start && value == 0.0)) {
    without_meaning(entry);
  } else if (is_start) {
    tell(fmt::format("{}: the warm-up begins at a learning rate of 0 here", entry.spelled));
  } else {
    const auto peak = peak_of(params);
    if (!value || !peak) {
      complain(entry,
               "a fraction of a learning rate that the file does not give; set "
               "scheduler.min_lr instead");
    } else {
      put("scheduler.min_lr", entry, scalar(fmt::format("{}", *value * *peak), entry.node));
    }
  }
}

/// train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * processes; any
/// of them may be missing.
void Pass::finish_batches() {
  const auto number = [](const std::optional<Entry>& entry) {
    return entry ? count_in(entry->node) : 0;
  };
  if (all_batches_) {
    put("training.global_batch_size", *all_batches_, all_batches_->node);
  }
  if (micro_batch_) {
    put("training.micro_batch_size", *micro_batch_, micro_batch_->node);
  }
  if (accumulation_ && !all_batches_) {
    put("training.gradient_accumulation_steps", *accumulation_, accumulation_->node);
  } else if (accumulation_) {
    tell(fmt::format("{} follows from train_batch_size and the number of ranks",
                     accumulation_->spelled));
  }
  const int64_t all = number(all_batches_);
  int64_t step = 0;
  const bool is_huge = __builtin_mul_overflow(number(micro_batch_), number(accumulation_), &step);
  if (all > 0 && (is_huge || step > 0)) {
    if (is_huge || all % step != 0) {
      complain(*all_batches_,
               fmt::format("{} is not a multiple of train_micro_batch_size_per_gpu {} * "
                           "gradient_accumulation_steps {}",
                           all, number(micro_batch_), number(accumulation_)));
    } else {
      processes_ = all / step;
    }
  }
}

}  // namespace fp8train::dialects
