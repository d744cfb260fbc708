#pragma once
// All settings, in the order in which they are read, shown and documented.

#include <string>
#include <string_view>
#include <vector>

#include "config/fields/field.h"

namespace fp8train {

/// A section's description for the documentation.
struct SectionDoc {
  std::string name;  ///< empty: the settings at the top level
  std::string doc;
};

/// Returns the table.
const std::vector<Field>& field_table();
/// Returns the sections in the order of the table, the top level last.
const std::vector<SectionDoc>& section_docs();

/// Returns the field with this key or alias, or null.
const Field* find_field(std::string_view key);

/// Returns the value of a key that there is, as YAML in one line; empty: not set.
std::string value_of(std::string_view key, const Settings& settings);

/// Whether some key or alias begins with `name` and a dot.
bool is_section(std::string_view name);

/// Returns the keys and sections directly inside a section (empty: the top level), aliases last.
std::vector<std::string> names_in_section(std::string_view section);

// The parts of the table, in its order.
std::vector<Field> model_fields();
std::vector<Field> data_fields();
std::vector<Field> training_fields();
std::vector<Field> optimizer_fields();
std::vector<Field> muon_fields();
std::vector<Field> schedule_fields();
std::vector<Field> precision_fields();
std::vector<Field> checkpoint_fields();
std::vector<Field> eval_fields();
std::vector<Field> sample_fields();
std::vector<Field> logging_fields();
std::vector<Field> comm_fields();
std::vector<Field> parallelism_fields();
std::vector<Field> moe_fields();
std::vector<Field> top_level_fields();
std::vector<Field> watchdog_fields();
std::vector<Field> hardware_fields();
std::vector<Field> slurm_fields();

/// Keys that select a plan together, in place of precision.plan.
inline constexpr const char* kPlanSelectors[] = {"fp8.recipe", "fp8.opt_level", "fp8.backend",
                                                 "fp8.use_te"};

/// Returns the optimizer steps of the run that is planned, for the wizard's offers and the checks
/// of a planned run; 0: they are known once the data has been read (max_epochs).
int64_t planned_steps(const Settings& settings);

/// Returns the fields that the wizard asks for, in its order.
const std::vector<const Field*>& wizard_fields();
/// Returns the title of a topic, such as "Hardware and nodes".
const char* title_of(Topic topic);

/// A key of a pasted Hugging Face config.json that sets nothing here. It is accepted when its value
/// is harmless.
struct PassiveKey {
  std::string key;
  std::vector<std::string> harmless;  ///< accepted texts; empty: anything
  std::string objection;              ///< message about another value
};
const std::vector<PassiveKey>& passive_keys();
const PassiveKey* find_passive_key(std::string_view key);

}  // namespace fp8train
