// model.rope_scaling: how rotary frequencies are stretched beyond the context of the first
// training.

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"

namespace fp8train {
namespace {

using namespace fields;

using RopeTypes = std::vector<RopeType>;

Field rope_type_field() {
  std::vector<std::string> names = rope_type_names();
  names.insert(names.begin(), "default");
  return named(
             "model.rope_scaling.rope_type", std::move(names),
             "How frequencies are stretched: linear all alike, llama3 and yarn the low ones; "
             "dynamic has no effect up to max_position_embeddings, default none",
             [](Settings& settings, const std::string& name) {
               const std::optional<RopeType> type = find_rope_type(name);
               std::optional<RopeScaling>& scaling = settings.model.config.rope_scaling;
               if (!type) {
                 scaling.reset();
               } else if (!scaling || scaling->type != *type) {
                 scaling = default_rope_scaling(*type);
               }
             },
             [](const Settings& settings) -> std::string_view {
               const auto& scaling = settings.model.config.rope_scaling;
               return scaling ? rope_type_name(scaling->type) : "default";
             })
      .also({"model.rope_scaling.type", "model.rope_parameters.rope_type"});
}

bool is_one_of(const std::optional<RopeScaling>& scaling, const RopeTypes& types) {
  return scaling && std::find(types.begin(), types.end(), scaling->type) != types.end();
}

/// A field inside rope_scaling that has a meaning with `types` only.
template <class T>
Field rope_field(const std::string& name, T RopeScaling::*member, const RopeTypes& types,
                 const Rule& rule, const std::string& doc) {
  const auto get = [member](auto& settings) -> auto& {
    return (*settings.model.config.rope_scaling).*member;
  };
  Field made = field("model.rope_scaling." + name, get, rule, doc);
  made.aliases = {"model.rope_parameters." + name};
  made.applies = [types](const Settings& settings) {
    return is_one_of(settings.model.config.rope_scaling, types);
  };
  made.read = [types, read = made.read](Settings& settings, const FieldValue& value) {
    if (is_one_of(settings.model.config.rope_scaling, types)) {
      read(settings, value);
      return;
    }
    std::vector<std::string_view> names;
    std::transform(types.begin(), types.end(), std::back_inserter(names), rope_type_name);
    value.fail("has a meaning only with rope_type: " + alternatives(names));
  };
  made.write = [write = made.write](const Settings& settings) {
    return settings.model.config.rope_scaling ? write(settings) : "";
  };
  return made;
}

}  // namespace

std::vector<Field> rope_fields() {
  const RopeTypes all = {RopeType::linear, RopeType::dynamic, RopeType::llama3, RopeType::yarn};
  const RopeTypes llama3 = {RopeType::llama3};
  const RopeTypes yarn = {RopeType::yarn};
  const Rule factor = {.range = above_up_to(0, 1e6), .is_unset_at_0 = true};
  return {
      rope_type_field(),
      rope_field("factor", &RopeScaling::factor, all, factor,
                 "Context after the stretching / context before"),
      rope_field("low_freq_factor", &RopeScaling::low_freq_factor, llama3, factor,
                 "Below original context / this, frequencies are stretched in full"),
      rope_field("high_freq_factor", &RopeScaling::high_freq_factor, llama3, factor,
                 "Above original context / this, frequencies stay as they are"),
      rope_field("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings,
                 {RopeType::llama3, RopeType::yarn}, count_up_to(ModelLimits::positions),
                 "Context before the stretching; yarn without it: max_position_embeddings"),
      rope_field("beta_fast", &RopeScaling::beta_fast, yarn, factor,
                 "Pairs that rotate more often in the original context stay as they are"),
      rope_field("beta_slow", &RopeScaling::beta_slow, yarn, factor,
                 "Pairs that rotate less often in the original context are stretched in full"),
      rope_field("attention_factor", &RopeScaling::attention_factor, yarn, factor,
                 "Factor of cosines and sines; not set: 0.1 ln(factor) + 1"),
      rope_field("mscale", &RopeScaling::mscale, yarn, factor,
                 "With mscale_all_dim, attention_factor is (0.1 mscale ln(factor) + 1) / (0.1 "
                 "mscale_all_dim ln(factor) + 1)"),
      rope_field("mscale_all_dim", &RopeScaling::mscale_all_dim, yarn, factor, "See mscale"),
      rope_field("truncate", &RopeScaling::truncate, yarn, {},
                 "The range between beta_fast and beta_slow ends at whole pairs"),
  };
}

}  // namespace fp8train
