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
  Field field;
  field.key = "model.rope_scaling.rope_type";
  field.accepts = "one of " + joined(names);
  field.choices = names;
  field.doc =
      "How frequencies are stretched: linear all alike, llama3 and yarn the low ones; dynamic has "
      "no effect up to max_position_embeddings, default none";
  field.aliases = {"model.rope_scaling.type", "model.rope_parameters.rope_type"};
  field.read = [names, what = field.accepts](Settings& settings, const FieldValue& value) {
    const auto name = read_choice(value, names, what);
    if (!name) {
      return;
    }
    const std::optional<RopeType> type = find_rope_type(*name);
    std::optional<RopeScaling>& scaling = settings.model.config.rope_scaling;
    if (!type) {
      scaling.reset();
    } else if (!scaling || scaling->type != *type) {
      scaling = default_rope_scaling(*type);
    }
  };
  field.write = [](const Settings& settings) {
    const auto& scaling = settings.model.config.rope_scaling;
    return std::string(scaling ? rope_type_name(scaling->type) : "default");
  };
  return field;
}

bool is_one_of(const std::optional<RopeScaling>& scaling, const RopeTypes& types) {
  return scaling && std::find(types.begin(), types.end(), scaling->type) != types.end();
}

/// A field inside rope_scaling that has a meaning with `types` only. `read` yields an optional
/// value of the member.
template <class T, class Read>
Field rope_field(const std::string& name, T RopeScaling::*member, const RopeTypes& types,
                 const std::string& accepts, const std::string& doc, Read read) {
  Field field;
  field.key = "model.rope_scaling." + name;
  field.accepts = accepts;
  field.doc = doc;
  field.aliases = {"model.rope_parameters." + name};
  field.applies = [types](const Settings& settings) {
    return is_one_of(settings.model.config.rope_scaling, types);
  };
  field.read = [member, types, read, accepts](Settings& settings, const FieldValue& value) {
    std::optional<RopeScaling>& scaling = settings.model.config.rope_scaling;
    if (!is_one_of(scaling, types)) {
      std::vector<std::string_view> names;
      std::transform(types.begin(), types.end(), std::back_inserter(names), rope_type_name);
      value.fail("has a meaning only with rope_type: " + alternatives(names));
    } else if (const auto result = read(value, accepts)) {
      (*scaling).*member = *result;
    }
  };
  field.write = [member](const Settings& settings) -> std::string {
    const std::optional<RopeScaling>& scaling = settings.model.config.rope_scaling;
    const T value = scaling ? (*scaling).*member : T(0);
    if constexpr (std::is_same_v<T, bool>) {
      return scaling ? flag_text(value) : "";
    } else {
      return value == T(0) ? "" : fmt::format("{}", value);  // 0: not set
    }
  };
  return field;
}

Field rope_number(const std::string& name, double RopeScaling::*member, const RopeTypes& types,
                  const std::string& doc) {
  const Range range = above_up_to(0, 1e6);
  const auto read = [range](const FieldValue& value, const std::string& what) {
    return read_number(value, range, what);
  };
  return with_range(rope_field(name, member, types, "a number" + range.text(), doc, read), range,
                    false);
}

}  // namespace

std::vector<Field> rope_fields() {
  const RopeTypes all = {RopeType::linear, RopeType::dynamic, RopeType::llama3, RopeType::yarn};
  const RopeTypes llama3 = {RopeType::llama3};
  const RopeTypes yarn = {RopeType::yarn};
  const Range positions = between(1, ModelLimits::positions);
  return {
      rope_type_field(),
      rope_number("factor", &RopeScaling::factor, all,
                  "Context after the stretching / context before"),
      rope_number("low_freq_factor", &RopeScaling::low_freq_factor, llama3,
                  "Below original context / this, frequencies are stretched in full"),
      rope_number("high_freq_factor", &RopeScaling::high_freq_factor, llama3,
                  "Above original context / this, frequencies stay as they are"),
      with_range(
          rope_field("original_max_position_embeddings",
                     &RopeScaling::original_max_position_embeddings,
                     {RopeType::llama3, RopeType::yarn}, "a whole number" + positions.text(),
                     "Context before the stretching; yarn without it: max_position_embeddings",
                     [positions](const FieldValue& value, const std::string& what) {
                       return read_integer(value, positions, what);
                     }),
          positions, true),
      rope_number("beta_fast", &RopeScaling::beta_fast, yarn,
                  "Pairs that rotate more often in the original context stay as they are"),
      rope_number("beta_slow", &RopeScaling::beta_slow, yarn,
                  "Pairs that rotate less often in the original context are stretched in full"),
      rope_number("attention_factor", &RopeScaling::attention_factor, yarn,
                  "Factor of cosines and sines; not set: 0.1 ln(factor) + 1"),
      rope_number("mscale", &RopeScaling::mscale, yarn,
                  "With mscale_all_dim, attention_factor is (0.1 mscale ln(factor) + 1) / (0.1 "
                  "mscale_all_dim ln(factor) + 1)"),
      rope_number("mscale_all_dim", &RopeScaling::mscale_all_dim, yarn, "See mscale"),
      rope_field("truncate", &RopeScaling::truncate, yarn, "true or false",
                 "The range between beta_fast and beta_slow ends at whole pairs", read_bool),
  };
}

}  // namespace fp8train
