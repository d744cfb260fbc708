#include "config/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field_table.h"

namespace fp8train {
namespace {

/// Spellings of transformers, axolotl, LLaMA-Factory, litgpt, torchtitan, Megatron, nanoGPT, llm.c.
constexpr ForeignName kNames[] = {
    {"learning_rate max_lr", "optimizer.lr"},
    {"beta1 beta2 adam_beta1 adam_beta2", "optimizer.betas"},
    {"adam_epsilon adam_eps epsilon", "optimizer.eps"},
    {"wd", "optimizer.weight_decay"},
    {"max_grad_norm max_norm clip_grad gradient_clipping gradient_clip_val", "optimizer.grad_clip"},
    {"optim", "optimizer.name"},
    {"lr_scheduler_type lr_scheduler lr_decay_style decay_type", "scheduler.type"},
    {"lr_decay_iters", "scheduler.decay_steps"},
    {"warmup_iters lr_warmup_iters lr_warmup_steps warmup", "scheduler.warmup_steps"},
    {"warmup_ratio lr_warmup_fraction",
     "scheduler.warmup_steps: the ratio times "
     "training.max_steps"},
    {"max_iters train_iters num_iterations num_steps total_steps steps", "training.max_steps"},
    {"epochs n_epochs num_epochs train_epochs num_train_epochs", "training.max_epochs"},
    {"batch_size per_device_train_batch_size train_micro_batch_size_per_gpu local_batch_size",
     "training.micro_batch_size"},
    {"train_batch_size total_batch_size", "training.global_batch_size"},
    {"grad_accum_steps accumulate_grad_batches", "training.gradient_accumulation_steps"},
    {"max_time_seconds", "training.max_time"},
    {"block_size seq_len sequence_len sequence_length max_seq_len max_seq_length max_length "
     "cutoff_len model_max_length",
     "data.seq_length"},
    {"dataset datasets dataset_dir dataset_name dataset_path data_path data_dir train_file "
     "train_files train_data input_bin",
     "data.train"},
    {"val_file validation_file eval_dataset test_datasets input_val_bin", "data.val"},
    {"val_set_size val_size validation_split", "data.val_fraction"},
    {"sample_packing pack_sequences", "data.packing"},
    {"tokenizer_path tokenizer_name tokenizer_dir tokenizer_config", "data.tokenizer"},
    {"template",
     "data.chat_template: auto, which is the default and takes that of the tokenizer's folder"},
    {"train_on_inputs train_on_prompt mask_prompt mask_history",
     "dialogues in data.train: only their answers count in the loss"},
    {"base_model model_name_or_path model_path model_name pretrained_model_name_or_path init_from "
     "checkpoint_dir initial_checkpoint_dir",
     "model.from"},
    {"n_layer", "model.num_hidden_layers"},
    {"n_head", "model.num_attention_heads"},
    {"n_embd", "model.hidden_size"},
    {"gradient_checkpointing activation_checkpoint* recompute_activations recompute_modules",
     "model.recompute"},
    {"bias", "model.qkv_bias, model.attention_output_bias, model.mlp_bias, model.norm_bias"},
    {"precision_plan", "precision.plan"},
    {"amax_compute_algorithm", "fp8.amax_compute_algo"},
    {"bf16", "mixed_precision: bf16"},
    {"fp16", "mixed_precision: fp16"},
    {"dtype torch_dtype", "mixed_precision"},
    {"fsdp sharding_strategy data_parallel_shard_degree", "parallelism.zero_stage"},
    {"data_parallel_replicate_degree hsdp hybrid_shard*", "parallelism.shard_ranks"},
    {"deepspeed deepspeed_config_file", "the file itself, after this one: fp8train run.yaml FILE"},
    {"num_nodes nnodes num_machines", "job.nodes, and srun or mpirun to start them"},
    {"gpus devices num_gpus n_gpu n_gpus nproc_per_node",
     "job.ranks_per_node, and srun or mpirun to start them"},
    {"compile torch_compile*", "cuda_graphs, on a GPU"},
    {"eval_iters", "eval.batches"},
    {"eval_steps eval_interval eval_every val_loss_every", "eval.interval"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"load_best_model_at_end", "checkpoint.keep_best"},
    {"resume_from_checkpoint auto_resume_from_checkpoints", "checkpoint.resume"},
    {"save_steps save_interval save_every checkpoint_interval", "checkpoint.interval"},
    {"logging_steps log_interval log_freq log_every", "logging.interval"},
    {"sample_interval sample_every", "sample.interval"},
    {"out_dir dump_folder output_log_dir", "output_dir"},
    {"tensor_parallel_size tensor_parallel_degree tensor_model_parallel_size tp tp_size tp_degree",
     "parallelism.tensor"},
    {"pipeline_parallel_size pipeline_parallel_degree pipeline_model_parallel_size pp pp_size "
     "pp_degree",
     "parallelism.pipeline"},
    {"context_parallel* cp cp_size cp_degree sequence_parallel_size sp_size ulysses*",
     "parallelism.context"},
    {"sequence_parallel", "parallelism.tensor, whose ranks always share rows of activations"},

    {"lora_r lora_rank", "model.lora.rank"},
    {"lora_alpha", "model.lora.alpha"},
    {"lora_target lora_target_modules target_modules", "model.lora.targets"},
    {"adapter_name_or_path lora_model_dir adapter_path", "model.lora.from"},
    {"lora peft* adapter finetuning_type",
     {},
     "adapters are a section of the model here; take model.lora with rank, alpha and targets"},
    {"qlora* load_in_4bit load_in_8bit quantization_bit lora_dropout use_dora",
     {},
     "adapters are trained without dropout, on weights of 8 bits or more; take model.lora, and "
     "model.lora.base for how weights are stored"},
    {"expert_parallel* expert_model_parallel* ep ep_size ep_degree", "parallelism.expert"},
    {"activation_offload* offload_activations* cpu_offloading*", "offload.activations"},
    {"cpu_offload* optimizer_offload* param_offload* fsdp_offload_params", "offload.optimizer"},
    {"wandb* use_wandb report_to mlflow* comet* neptune* swanlab* logger_name",
     {},
     "nothing is sent to a service from here; scripts/export/to_wandb.py sends a run to Weights & "
     "Biases, also while it is running (docs/reference/metrics.md), and logging.tensorboard: true "
     "writes files for TensorBoard"},
    {"push_to_hub* hub_* hf_hub*",
     {},
     "nothing is uploaded from here; `fp8train export` writes a folder, and `hf upload NAME "
     "FOLDER` "
     "uploads it"},
    {"stage rl rlhf* dpo* grpo* ppo* kto* orpo* simpo* pref_* reward* trl",
     {},
     "training on preferences or rewards is not here; the loss is that of the next token, of a "
     "text or of the answers in dialogues (data.train)"},
    {"dropout* label_smoothing* ema* neftune* mixup*",
     {},
     "it would change the training, and is not here; remove it"},
    {"early_stopping*",
     {},
     "a run does not end before its length; checkpoint.keep_best keeps the best checkpoint"},
    {"streaming num_workers dataloader_num_workers preprocessing_num_workers",
     {},
     "there is nothing to set; a thread reads ahead from the files that data.train names"},
    {"flash_attention* flash_attn* use_flash_attn* attn_implementation sdp_attention "
     "xformers_attention",
     {},
     "attention has no choice of kernels; on a GPU it is cuDNN's if the build has it"},
};

bool matches(std::string_view name, std::string_view pattern) {
  return pattern.ends_with('*')
             ? name.starts_with(simplified(pattern.substr(0, pattern.size() - 1)))
             : name == simplified(pattern);
}

}  // namespace

std::span<const ForeignName> foreign_names() {
  return kNames;
}

const ForeignName* find_foreign_name(std::string_view name) {
  const std::string wanted = simplified(name);
  const auto* found = std::ranges::find_if(kNames, [&](const ForeignName& entry) {
    return std::ranges::any_of(split(entry.names, ' '), [&](const std::string& pattern) {
      return matches(wanted, pattern);
    });
  });
  return found == std::end(kNames) ? nullptr : found;
}

namespace {

std::string belongs_to(const std::string& name, std::string_view key) {
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos || key.find(' ') != std::string_view::npos) {
    return fmt::format("use {}", key);
  }
  const std::string_view leaf = key.substr(dot + 1);
  const std::string renamed = leaf == name ? "" : fmt::format(" as {}", leaf);
  return fmt::format("`{}` belongs to `{}`{}", name, key.substr(0, dot), renamed);
}

/// Why a key is not here, by its name or by a section that it is in (`lora.rank`); else nothing.
std::string not_here(const std::string& section, const std::string& name) {
  for (const std::string& part : split(fmt::format("{}.{}", name, section), '.')) {
    const ForeignName* entry = find_foreign_name(part);
    if (entry != nullptr && !entry->not_here.empty()) {
      return std::string(entry->not_here);
    }
  }
  return "";
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

std::string key_of_foreign_name(const std::string& name) {
  if (const ForeignName* entry = find_foreign_name(name)) {
    return std::string(entry->key.find(' ') == std::string_view::npos ? entry->key : "");
  }
  std::string key;
  for (const Field& field : field_table()) {
    if (simplified(field.key.substr(field.key.rfind('.') + 1)) == simplified(name)) {
      if (!key.empty()) {
        return "";
      }
      key = field.key;
    }
  }
  return key;
}

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
  if (std::string missing = not_here(section, name); !missing.empty()) {
    return missing;
  }
  if (const ForeignName* entry = find_foreign_name(name)) {
    const std::string_view foreign = entry->key;
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
  const std::string parent = section.substr(section.rfind('.') + 1);
  if (const ForeignName* entry = find_foreign_name(parent); entry != nullptr && !section.empty()) {
    return belongs_to(parent, entry->key);
  }
  std::vector<std::string> keys;
  for (const Field& field : field_table()) {
    keys.push_back(field.key.substr(field.key.rfind('.') + 1));
  }
  const std::string far = nearest_name(name, keys);
  if (far.size() >= 4) {
    return "did you mean: " + same_name_elsewhere(far) + "?";
  }
  return section.empty() || siblings.empty() ? "" : "there are: " + joined(siblings);
}

}  // namespace fp8train
