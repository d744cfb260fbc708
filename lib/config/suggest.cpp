#include "config/suggest.h"

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/fields/field_table.h"

namespace fp8train {
namespace {

struct Foreign {
  std::string_view name;
  std::string_view key;  ///< ours, or an advice when it holds a blank
};

/// Spellings of other trainers.
constexpr Foreign kForeign[] = {
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"adam_epsilon", "optimizer.eps"},
    {"adam_eps", "optimizer.eps"},
    {"epsilon", "optimizer.eps"},
    {"wd", "optimizer.weight_decay"},
    {"max_grad_norm", "optimizer.grad_clip"},
    {"max_norm", "optimizer.grad_clip"},
    {"clip_grad", "optimizer.grad_clip"},
    {"gradient_clipping", "optimizer.grad_clip"},
    {"gradient_clip_val", "optimizer.grad_clip"},
    {"optim", "optimizer.name"},
    {"lr_scheduler_type", "scheduler.type"},
    {"lr_scheduler", "scheduler.type"},
    {"lr_decay_style", "scheduler.type"},
    {"decay_type", "scheduler.type"},
    {"lr_decay_iters", "scheduler.decay_steps"},
    {"warmup_iters", "scheduler.warmup_steps"},
    {"lr_warmup_iters", "scheduler.warmup_steps"},
    {"warmup", "scheduler.warmup_steps"},
    {"warmup_ratio", "scheduler.warmup_steps: the ratio times training.max_steps"},
    {"max_iters", "training.max_steps"},
    {"train_iters", "training.max_steps"},
    {"num_steps", "training.max_steps"},
    {"total_steps", "training.max_steps"},
    {"steps", "training.max_steps"},
    {"epochs", "training.max_epochs"},
    {"n_epochs", "training.max_epochs"},
    {"num_epochs", "training.max_epochs"},
    {"train_epochs", "training.max_epochs"},
    {"num_train_epochs", "training.max_epochs"},
    {"batch_size", "training.micro_batch_size"},
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"train_micro_batch_size_per_gpu", "training.micro_batch_size"},
    {"local_batch_size", "training.micro_batch_size"},
    {"train_batch_size", "training.global_batch_size"},
    {"total_batch_size", "training.global_batch_size"},
    {"grad_accum_steps", "training.gradient_accumulation_steps"},
    {"accumulate_grad_batches", "training.gradient_accumulation_steps"},
    {"max_time_seconds", "training.max_time"},
    {"block_size", "data.seq_length"},
    {"seq_len", "data.seq_length"},
    {"sequence_length", "data.seq_length"},
    {"max_seq_len", "data.seq_length"},
    {"max_length", "data.seq_length"},
    {"dataset", "data.train"},
    {"train_files", "data.train"},
    {"tokenizer_path", "data.tokenizer"},
    {"gradient_checkpointing", "model.recompute"},
    {"activation_checkpointing", "model.recompute"},
    {"bias", "model.qkv_bias, model.attention_output_bias, model.mlp_bias, model.norm_bias"},
    {"precision_plan", "precision.plan"},
    {"amax_compute_algorithm", "fp8.amax_compute_algo"},
    {"eval_iters", "eval.batches"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"resume_from_checkpoint", "checkpoint.resume"},
    {"out_dir", "output_dir"},
    {"eval_steps", "eval.interval"},
    {"eval_interval", "eval.interval"},
    {"eval_every", "eval.interval"},
    {"save_steps", "checkpoint.interval"},
    {"save_interval", "checkpoint.interval"},
    {"checkpoint_interval", "checkpoint.interval"},
    {"logging_steps", "logging.interval"},
    {"log_interval", "logging.interval"},
    {"sample_interval", "sample.interval"},
    {"sample_every", "sample.interval"},
    {"bf16", "mixed_precision: bf16"},
    {"fp16", "mixed_precision: fp16"},
};

std::string_view foreign_meaning(const std::string& name) {
  const std::string wanted = simplified(name);
  for (const Foreign& foreign : kForeign) {
    if (simplified(foreign.name) == wanted) {
      return foreign.key;
    }
  }
  return {};
}

std::string belongs_to(const std::string& name, std::string_view key) {
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos || key.find(' ') != std::string_view::npos) {
    return fmt::format("use {}", key);
  }
  const std::string_view leaf = key.substr(dot + 1);
  const std::string renamed = leaf == name ? "" : fmt::format(" as {}", leaf);
  return fmt::format("`{}` belongs to `{}`{}", name, key.substr(0, dot), renamed);
}

/// Fields of other sections whose last part is `name`.
std::string same_name_elsewhere(const std::string& name) {
  std::string sections;
  size_t count = 0;
  for (const Field& field : field_table()) {
    const size_t dot = field.key.rfind('.');
    const std::string_view leaf = std::string_view(field.key).substr(dot + 1);
    if (simplified(leaf) != simplified(name)) {
      continue;
    }
    if (dot == std::string::npos) {
      return fmt::format("`{}` belongs to the top level", leaf);
    }
    sections += fmt::format("{}`{}`", count == 0 ? "" : " or ", field.key.substr(0, dot));
    ++count;
  }
  return sections.empty() ? "" : fmt::format("`{}` belongs to {}", name, sections);
}

}  // namespace

std::string advice_for_unknown_key(const std::string& section, const std::string& name) {
  if (name.size() > 64) {
    return "";
  }
  const auto did_you_mean = [](const std::string& key) {
    return fmt::format("did you mean \"{}\"?", key);
  };
  if (const size_t dot = name.rfind('.'); dot != std::string::npos && find_field(name) != nullptr) {
    return fmt::format("write it as `{}` inside `{}`", name.substr(dot + 1), name.substr(0, dot));
  }
  const std::vector<std::string> siblings = names_in_section(section);
  const std::string nearest = nearest_name(name, siblings);
  if (!nearest.empty() && simplified(nearest) == simplified(name)) {
    return did_you_mean(nearest);
  }
  const std::string_view foreign = foreign_meaning(name);
  if (!foreign.empty()) {
    const bool same_section = !section.empty() && foreign.rfind('.') == section.size() &&
                              foreign.substr(0, section.size()) == section;
    return same_section ? did_you_mean(std::string(foreign.substr(section.size() + 1)))
                        : belongs_to(name, foreign);
  }
  if (std::string elsewhere = same_name_elsewhere(name); !elsewhere.empty()) {
    return elsewhere;
  }
  if (!nearest.empty()) {
    return did_you_mean(nearest);
  }
  std::vector<std::string> keys;
  for (const Field& field : field_table()) {
    keys.push_back(field.key.substr(field.key.rfind('.') + 1));
  }
  const std::string far = nearest_name(name, keys);
  if (far.empty() || far.size() < 4) {
    return "";
  }
  return "did you mean: " + same_name_elsewhere(far) + "?";
}

}  // namespace fp8train
