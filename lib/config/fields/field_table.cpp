#include "config/fields/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "config/fields/field_builders.h"
#include "tensor/tensor_format.h"

namespace fp8train {

const std::vector<Field>& field_table() {
  static const std::vector<Field> kTable = fields::concat(
      {model_fields(), data_fields(), training_fields(), optimizer_fields(), muon_fields(),
       schedule_fields(), precision_fields(), checkpoint_fields(), eval_fields(), sample_fields(),
       logging_fields(), comm_fields(), parallelism_fields(), moe_fields(), top_level_fields(),
       watchdog_fields(), hardware_fields(), slurm_fields()});
  return kTable;
}

const std::vector<SectionDoc>& section_docs() {
  static const std::vector<SectionDoc> kDocs = {
      {"model",
       "What is trained. Give a preset, a folder, or the fields of a Hugging Face `config.json`; "
       "fields next to a preset override it. Further keys of a pasted `config.json` that mean "
       "nothing here are accepted."},
      {"data", "Where tokens come from."},
      {"training", "Length of the run and sizes of its batches."},
      {"optimizer", "How gradients update weights."},
      {"scheduler", "The learning rate over the steps."},
      {"precision",
       fmt::format(
           "A plan by name, and formats of single roles, which override the plan. The format of a "
           "role is written as `fp8train explain` prints it, in this order: an element type ({}); "
           "if it is scaled, the block that shares a scale ({}); `expanded` after a group; "
           "`current` or `delayed(1024, max)`; the type of the scales ({}; else fp32); "
           "`row_scaled`; `hadamard`; and `stochastic`, for stored weights, masters and moments, "
           "and for x and dy in e2m1. "
           "`bf16 remainder` is an fp32 master in two halves. `current` may be left out; e4m3, "
           "e5m2 and stored fp16 without a block have a current scale for the tensor. Formats that "
           "cannot be combined are an error. The table of plans: [plans](plans.md).",
           joined(format_elements()), joined(format_blocks()), joined(format_scale_types()))},
      {"fp8", "The FP8 method, with `mixed_precision: fp8`, and options of the plan."},
      {"checkpoint", "Saving and resuming: [checkpoints.md](checkpoints.md)."},
      {"eval", "Validation loss."},
      {"sample", "Text that the model generates during training."},
      {"logging", "Progress lines and files of metrics."},
      {"comm", "How ranks find each other and communicate."},
      {"watchdog",
       "How long a rank may do one thing before the run ends with exit code 86 and a report "
       "([troubleshooting hangs](hangs.md)). Time in which the process is stopped does not count."},
      {"parallelism", "How the work is distributed over ranks."},
      {"moe", "How the experts of a model with `num_experts` are trained."},
      {"offload", "Data that is in memory of the host instead of the GPU's."},
      {"job",
       "The machines that the run is planned for, and how Slurm starts it: `fp8train config` asks "
       "for these keys, estimates memory for them and writes the job script. A run itself uses the "
       "ranks with which it is started."},
      {"", "Keys outside any section."},
  };
  return kDocs;
}

const std::vector<const Field*>& wizard_fields() {
  static const std::vector<const Field*> kFields = [] {
    std::vector<const Field*> fields;
    for (const Field& field : field_table()) {
      if (field.question) {
        fields.push_back(&field);
      }
    }
    std::stable_sort(fields.begin(), fields.end(), [](const Field* a, const Field* b) {
      return a->question->topic < b->question->topic;
    });
    return fields;
  }();
  return kFields;
}

const char* title_of(Topic topic) {
  constexpr const char* kTitles[] = {"Data",
                                     "Hardware and nodes",
                                     "Model",
                                     "Tokens",
                                     "Precision",
                                     "Length, optimizer and evaluation",
                                     "Parallelism and memory",
                                     "Checkpoints and output",
                                     "Job script"};
  static_assert(std::size(kTitles) == static_cast<size_t>(Topic::job) + 1);
  return kTitles[static_cast<size_t>(topic)];
}

const Field* find_field(std::string_view key) {
  static const std::unordered_map<std::string_view, const Field*> kIndex = [] {
    std::unordered_map<std::string_view, const Field*> index;
    for (const Field& field : field_table()) {
      index.emplace(field.key, &field);
      for (const std::string& alias : field.aliases) {
        index.emplace(alias, &field);
      }
    }
    return index;
  }();
  const auto found = kIndex.find(key);
  return found == kIndex.end() ? nullptr : found->second;
}

std::string value_of(std::string_view key, const Settings& settings) {
  return find_field(key)->write(settings);
}

bool is_section(std::string_view name) {
  const auto begins = [&](const std::string& key) {
    return key.size() > name.size() && key[name.size()] == '.' && key.starts_with(name);
  };
  return !name.empty() && std::any_of(field_table().begin(), field_table().end(), [&](auto& field) {
    return begins(field.key) || std::any_of(field.aliases.begin(), field.aliases.end(), begins);
  });
}

std::vector<std::string> names_in_section(std::string_view section) {
  std::vector<std::string> names;
  const auto add = [&](std::string_view key) {
    if (!section.empty()) {
      if (!key.starts_with(section) || key.size() <= section.size() || key[section.size()] != '.') {
        return;
      }
      key.remove_prefix(section.size() + 1);
    }
    const std::string name(key.substr(0, key.find('.')));
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  };
  for (const Field& field : field_table()) {
    add(field.key);
  }
  for (const Field& field : field_table()) {
    std::for_each(field.aliases.begin(), field.aliases.end(), add);
  }
  return names;
}

const PassiveKey* find_passive_key(std::string_view key) {
  const auto& keys = passive_keys();
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const PassiveKey& k) { return k.key == key; });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace fp8train
