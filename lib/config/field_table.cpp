#include "config/field_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tensor/tensor_format.h"

namespace fp8train {

const std::vector<Field>& field_table() {
  static const std::vector<Field> kTable = [] {
    std::vector<Field> table;
    for (std::vector<Field>& part :
         std::vector{model_fields(), data_fields(), training_fields(), optimizer_fields(),
                     precision_fields(), run_fields(), watchdog_fields(), job_fields()}) {
      table.insert(table.end(), std::make_move_iterator(part.begin()),
                   std::make_move_iterator(part.end()));
    }
    return table;
  }();
  return kTable;
}

const std::vector<SectionDoc>& section_docs() {
  static const std::vector<SectionDoc> kDocs = {
      {"model",
       "What is trained. Give a preset, a folder, or the fields of a Hugging Face `config.json`; "
       "fields next to a preset override it. Further keys of a pasted `config.json` that mean "
       "nothing here are accepted."},
      {"data", "Where tokens come from."},
      {"training", "How long and in what portions."},
      {"optimizer", "How gradients change weights."},
      {"scheduler", "The learning rate over the steps."},
      {"precision",
       fmt::format(
           "A plan by name, and formats of single roles, whatever the plan says. The format of a "
           "role is written as `fp8train explain` writes it: an element type ({}) and, where it is "
           "scaled, what shares a scale ({}), `expanded` after a group, `current` or "
           "`delayed(1024, max)`, the type of the scales ({}; else fp32), `hadamard`; at the end "
           "`stochastic`, of weights, masters and moments that are stored, and of x and dy in "
           "e2m1; "
           "`bf16 remainder` is an fp32 master in two halves. `current` may be left out, and e4m3, "
           "e5m2 and (of what is stored) fp16 alone have a current scale for the tensor. Formats "
           "that do not go together are an error. The table of plans: [plans](plans.md).",
           joined(format_elements()), joined(format_blocks()), joined(format_scale_types()))},
      {"fp8", "Which FP8 method, with `mixed_precision: fp8`."},
      {"checkpoint", "Saving and resuming: [checkpoints.md](checkpoints.md)."},
      {"eval", "Validation loss."},
      {"sample", "Text that the model writes during training."},
      {"logging", "What is printed."},
      {"comm", "How ranks find each other and talk."},
      {"watchdog",
       "How long a rank may do one thing before the run ends with exit code 86 and a report "
       "([troubleshooting hangs](hangs.md)). Time in which the process is stopped does not count."},
      {"parallelism", "How the work is laid over ranks."},
      {"job",
       "What the run is planned for, and how Slurm is to start it: `fp8train config` asks, "
       "estimates "
       "memory for it and writes the job script. A run itself takes what it is started with."},
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
  switch (topic) {
    case Topic::hardware:
      return "Hardware and nodes";
    case Topic::model:
      return "Model";
    case Topic::data:
      return "Data";
    case Topic::precision:
      return "Precision";
    case Topic::optimization:
      return "Length and optimizer";
    case Topic::parallelism:
      return "Parallelism and memory";
    case Topic::checkpoints:
      return "Checkpoints and output";
    case Topic::job:
      return "Job script";
  }
  return "";
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
