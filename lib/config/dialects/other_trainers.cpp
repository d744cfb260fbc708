#include "config/dialects/dialects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/dialects/pass.h"
#include "config/fields/field_table.h"
#include "config/foreign_names.h"
#include "config/show.h"

namespace fp8train {
namespace {

using dialects::text_of;
using dialects::value_of;

struct Trainer {
  const char* name;
  std::string_view marks;  ///< keys with blanks between them, two of which recognize a file
};

/// The first that recognizes a file has it: LLaMA-Factory's files hold TrainingArguments.
constexpr Trainer kTrainers[] = {
    {"axolotl",
     "base_model sequence_len num_epochs datasets dataset_prepared_path val_set_size "
     "sample_packing pad_to_sequence_len adapter load_in_8bit load_in_4bit lora_r special_tokens "
     "tokenizer_type base_model_config train_on_inputs plugins"},
    {"LLaMA-Factory",
     "model_name_or_path stage finetuning_type template cutoff_len dataset_dir "
     "preprocessing_num_workers lora_target fp8_backend fp8_enable_fsdp_float8_all_gather"},
    {"litgpt",
     "checkpoint_dir out_dir initial_checkpoint_dir tokenizer_dir model_name model_config devices "
     "num_nodes logger_name lora_r train"},
    {"transformers (TrainingArguments)",
     "model_name_or_path per_device_train_batch_size per_device_eval_batch_size num_train_epochs "
     "lr_scheduler_type warmup_ratio save_strategy eval_strategy evaluation_strategy "
     "logging_strategy logging_steps logging_dir save_steps eval_steps save_total_limit report_to "
     "do_train do_eval max_grad_norm adam_beta1 adam_beta2 adam_epsilon dataloader_num_workers "
     "push_to_hub load_best_model_at_end remove_unused_columns gradient_checkpointing "
     "overwrite_output_dir"}};

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

bool recognizes(const Trainer& trainer, const YamlNode& root) {
  const std::vector<std::string> marks = split(trainer.marks, ' ');
  const auto found = std::ranges::count_if(root.keys, [&](const YamlKey& key) {
    return std::ranges::find(marks, key.text) != marks.end();
  });
  return found >= 2;
}

/// Whether our field takes this value, which may have another meaning there.
bool takes(const std::string& key, const YamlNode& value) {
  Problems problems;
  problems.add_source("", false);
  Settings probe;
  find_field(key)->read(probe, FieldValue(value, key, {}, problems));
  return problems.empty();
}

/// Whether a key does not ask for anything with this value.
bool asks_for_nothing(const YamlNode& value) {
  constexpr std::string_view kDefaults[] = {"full", "sft", "pt", "-1"};
  const bool is_default = std::ranges::find(kDefaults, value.text) != std::end(kDefaults);
  return is_default || dialects::is_off(value);  // of finetuning_type, stage and max_steps
}

/// Values of other programs that mean the same as one of ours.
struct Renamed {
  std::string_view key, theirs, ours;
};
constexpr Renamed kRenamed[] = {{"optimizer.name", "adamw_torch", "adamw"},
                                {"optimizer.name", "adamw_torch_fused", "adamw"},
                                {"optimizer.name", "adamw_hf", "adamw"},
                                {"scheduler.type", "constant_with_warmup", "constant"},
                                {"data.packing", "true", "documents"},
                                {"model.recompute", "true", "block"}};

YamlNode renamed(const std::string& key, const YamlNode& value) {
  const auto* found = std::ranges::find_if(kRenamed, [&](const Renamed& one) {
    return one.key == key && value.kind == YamlNode::Kind::scalar && one.theirs == value.text;
  });
  return found == std::end(kRenamed) ? value : dialects::value(std::string(found->ours), value);
}

/// The settings of a file.
struct Said {
  std::vector<std::pair<std::string, std::string>> settings;  ///< our key and the value
  std::vector<std::string> advice;
  std::vector<std::string> unknown;  ///< keys that mean nothing here
};

/// Whether this is a key of the model, with its tokenizer, of the data or of the precision, of
/// which the sentence speaks.
bool is_in_sentence(const std::string& name, std::string_view key) {
  return key == "data.train" || key == "data.tokenizer" ||
         (key.starts_with("model.") && key != "model.recompute" &&
          !key.starts_with("model.lora.")) ||
         key.starts_with("mixed_precision") || name == "precision" || name.starts_with("fp8");
}

void read_keys(const YamlNode& map, Said& said) {
  for (size_t i = 0; i < map.items.size(); ++i) {
    const std::string& name = map.keys[i].text;
    const bool is_map = map.items[i].kind == YamlNode::Kind::map;
    if (is_map && (name == "train" || name == "optimizer" || name == "init_args")) {  // of litgpt
      read_keys(map.items[i], said);
      continue;
    }
    const ForeignName* entry = find_foreign_name(name);
    const std::string key =
        name == "optimizer" || name == "class_path" ? "optimizer.name" : key_of_foreign_name(name);
    const YamlNode value = renamed(key, map.items[i]);
    if (is_in_sentence(name, entry != nullptr ? entry->key : key)) {
      continue;
    }
    if (!key.empty() && !is_map && takes(key, value)) {
      said.settings.emplace_back(key, text_of(value));
    } else if (asks_for_nothing(value)) {
      continue;
    } else if (key.empty() && entry == nullptr) {
      said.unknown.push_back(name);
    } else {
      std::string text =
          !key.empty()
              ? fmt::format("{}: {}: {} takes {}", name, text_of(value), key,
                            find_field(key)->accepts)
              : fmt::format("{}: {}", name, entry->key.empty() ? entry->not_here : entry->key);
      const bool is_new = std::ranges::none_of(said.advice, [&](const std::string& other) {
        return other.substr(other.find(':')) == text.substr(text.find(':'));
      });
      if (is_new) {
        said.advice.push_back(std::move(text));
      }
    }
  }
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
  Said said;
  read_keys(root, said);
  // Lengths exclude each other here. Steps come first, as in transformers, where -1 is "not set".
  const bool has_steps = std::ranges::any_of(
      said.settings, [](const auto& one) { return one.first == "training.max_steps"; });
  const bool has_adapters =
      std::ranges::any_of(
          said.advice,
          [](const std::string& advice) { return advice.find("adapters") != std::string::npos; }) &&
      std::ranges::none_of(said.settings,
                           [](const auto& one) { return one.first == "model.lora.rank"; });
  std::string keys;
  for (const auto& [key, value] : said.settings) {
    const bool is_length = key == "training.max_epochs" || key == "training.max_tokens";
    const bool is_of_adapters = has_adapters && key == "optimizer.lr";  // too large for all weights
    keys += (has_steps && is_length) || is_of_adapters ? "" : fmt::format(" {}={}", key, value);
  }
  return fmt::format(
      "this is a file of {}, which is not read here; {}name the model with model.from and the data "
      "with data.train, and choose the precision with mixed_precision: fp8 or precision.plan{}{}",
      trainer->name, keys.empty() ? "" : fmt::format("write its settings as{}, ", keys),
      said.advice.empty() ? "" : fmt::format("; {}", fmt::join(said.advice, "; ")),
      said.unknown.empty() ? ""
                           : fmt::format("; without a counterpart here: {}", joined(said.unknown)));
}

}  // namespace fp8train
