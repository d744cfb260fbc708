#include "dialects/other_trainers.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "config/fields/scalar.h"
#include "config/show.h"
#include "dialects/pass.h"

namespace fp8train {
namespace {

using dialects::text_of;
using dialects::value_of;
using dialects::Words;

struct Trainer {
  const char* name;
  std::string_view marks;       ///< keys with blanks between them, two of which recognize a file
  std::span<const Words> keys;  ///< a dotted key of the file, and ours or an advice with a blank
};

constexpr const char* kRatio = "scheduler.warmup_steps is this ratio of training.max_steps";

/// axolotl, src/axolotl/utils/schemas/config.py and training.py.
constexpr Words kAxolotl[] = {
    {"micro_batch_size", "training.micro_batch_size"},
    {"gradient_accumulation_steps", "training.gradient_accumulation_steps"},
    {"max_steps", "training.max_steps"},
    {"num_epochs", "training.max_epochs"},
    {"learning_rate", "optimizer.lr"},
    {"weight_decay", "optimizer.weight_decay"},
    {"max_grad_norm", "optimizer.grad_clip"},
    {"warmup_steps", "scheduler.warmup_steps"},
    {"warmup_ratio", kRatio},
    {"sequence_len", "data.seq_length"},
    {"output_dir", "output_dir"}};

/// transformers, training_args.py; LLaMA-Factory adds cutoff_len (src/llamafactory/hparams/).
constexpr Words kTrainingArguments[] = {
    {"per_device_train_batch_size", "training.micro_batch_size"},
    {"gradient_accumulation_steps", "training.gradient_accumulation_steps"},
    {"max_steps", "training.max_steps"},
    {"num_train_epochs", "training.max_epochs"},
    {"learning_rate", "optimizer.lr"},
    {"weight_decay", "optimizer.weight_decay"},
    {"max_grad_norm", "optimizer.grad_clip"},
    {"warmup_steps", "scheduler.warmup_steps"},
    {"warmup_ratio", kRatio},
    {"cutoff_len", "data.seq_length"},
    {"output_dir", "output_dir"}};

/// litgpt, litgpt/args.py.
constexpr Words kLitgpt[] = {{"train.micro_batch_size", "training.micro_batch_size"},
                             {"train.global_batch_size", "training.global_batch_size"},
                             {"train.max_steps", "training.max_steps"},
                             {"train.max_tokens", "training.max_tokens"},
                             {"train.epochs", "training.max_epochs"},
                             {"train.lr_warmup_steps", "scheduler.warmup_steps"},
                             {"train.max_norm", "optimizer.grad_clip"},
                             {"train.max_seq_length", "data.seq_length"},
                             {"optimizer.init_args.lr", "optimizer.lr"},
                             {"optimizer.init_args.weight_decay", "optimizer.weight_decay"},
                             {"out_dir", "output_dir"}};

/// The first that recognizes a file has it: LLaMA-Factory's files hold TrainingArguments.
constexpr Trainer kTrainers[] = {
    {"axolotl",
     "base_model sequence_len num_epochs datasets dataset_prepared_path val_set_size "
     "sample_packing pad_to_sequence_len adapter load_in_8bit load_in_4bit lora_r special_tokens "
     "tokenizer_type base_model_config train_on_inputs plugins",
     kAxolotl},
    {"LLaMA-Factory",
     "model_name_or_path stage finetuning_type template cutoff_len dataset_dir "
     "preprocessing_num_workers lora_target fp8_backend fp8_enable_fsdp_float8_all_gather",
     kTrainingArguments},
    {"litgpt",
     "checkpoint_dir out_dir initial_checkpoint_dir tokenizer_dir model_name model_config devices "
     "num_nodes logger_name lora_r train",
     kLitgpt},
    {"transformers (TrainingArguments)",
     "model_name_or_path per_device_train_batch_size per_device_eval_batch_size num_train_epochs "
     "lr_scheduler_type warmup_ratio save_strategy eval_strategy evaluation_strategy "
     "logging_strategy logging_steps logging_dir save_steps eval_steps save_total_limit report_to "
     "do_train do_eval max_grad_norm adam_beta1 adam_beta2 adam_epsilon dataloader_num_workers "
     "push_to_hub load_best_model_at_end remove_unused_columns gradient_checkpointing "
     "overwrite_output_dir",
     kTrainingArguments}};

/// Whether the file has a section that only this program's files have: by its name, or, where those
/// of others have one of this name, by a key in it.
bool has_own_section(const YamlNode& root) {
  const std::vector<std::string> ours = config_keys();
  const auto is_own = [&](const std::string& section, bool by_name) {
    const YamlNode* value = value_of(root, section);
    if (value == nullptr || value->kind != YamlNode::Kind::map) {
      return false;
    }
    return by_name || std::ranges::any_of(value->keys, [&](const YamlKey& key) {
             return std::ranges::find(ours, section + "." + key.text) != ours.end();
           });
  };
  constexpr const char* kOwn[] = {"model",       "training",   "precision", "scheduler",
                                  "parallelism", "checkpoint", "logging"};
  return std::ranges::any_of(kOwn, [&](const char* name) { return is_own(name, true); }) ||
         is_own("data", false) || is_own("optimizer", false);
}

/// The value of a dotted key; null where it is not there.
const YamlNode* value_at(const YamlNode& root, std::string_view key) {
  const YamlNode* node = &root;
  for (const std::string& part : split(key, '.')) {
    node = node->kind == YamlNode::Kind::map ? value_of(*node, part) : nullptr;
    if (node == nullptr) {
      return nullptr;
    }
  }
  return node;
}

bool recognizes(const Trainer& trainer, const YamlNode& root) {
  const std::vector<std::string> marks = split(trainer.marks, ' ');
  const auto found = std::ranges::count_if(root.keys, [&](const YamlKey& key) {
    return std::ranges::find(marks, key.text) != marks.end();
  });
  return found >= 2;
}

}  // namespace

std::optional<std::string> refusal_of_other_trainer(const YamlNode& root) {
  if (root.kind != YamlNode::Kind::map || has_own_section(root)) {
    return std::nullopt;
  }
  const auto* trainer =
      std::ranges::find_if(kTrainers, [&](const Trainer& one) { return recognizes(one, root); });
  if (trainer == std::end(kTrainers)) {
    return std::nullopt;
  }
  std::string keys, advice;
  bool has_length = false;
  for (const auto& [theirs, ours] : trainer->keys) {
    const YamlNode* value = value_at(root, theirs);
    if (value == nullptr || value->kind != YamlNode::Kind::scalar) {
      continue;
    }
    if (ours.starts_with("training.max_")) {
      // Here they exclude each other. Steps come first, as in transformers, where -1 is "not set".
      if (has_length || parse_number(value->text).value_or(0) <= 0) {
        continue;
      }
      has_length = true;
    }
    if (ours.find(' ') == std::string_view::npos) {
      keys += fmt::format(" {}={}", ours, text_of(*value));
    } else {
      advice += fmt::format("; {}: {}", theirs, ours);
    }
  }
  return fmt::format(
      "this is a file of {}, which is not read here; {}name the model with model.from and the data "
      "with data.train, and choose the precision with mixed_precision: fp8 or precision.plan{}",
      trainer->name, keys.empty() ? "" : fmt::format("write its settings as{}, ", keys), advice);
}

}  // namespace fp8train
