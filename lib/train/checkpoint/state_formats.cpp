#include "train/checkpoint/state_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "tensor/tensor_format.h"

namespace fp8train {
namespace {

using Lines = std::vector<std::string>;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// A role's key in state.json and its name in messages.
using NamedRole = std::pair<const char*, const char*>;

constexpr NamedRole kOperands[] = {{"fprop_x", "fprop x"},   {"fprop_w", "fprop w"},
                                   {"dgrad_dy", "dgrad dy"}, {"dgrad_w", "dgrad w"},
                                   {"wgrad_dy", "wgrad dy"}, {"wgrad_x", "wgrad x"}};
constexpr NamedRole kStored[] = {{"weight_gradient", "weight gradient"},
                                 {"gradient_wire", "gradient wire"},
                                 {"moment1", "moment 1"},
                                 {"moment2", "moment 2"}};
constexpr const char* kWeight = "weight";
constexpr const char* kMaster = "master_weight";
constexpr const char* kLayers = "layers";
constexpr const char* kScaledTensors = "scaled_tensors";

/// Returns the operands' formats of a model's plan, or of a layer's.
template <typename Plan>
OrderedJson operands_of(const Plan& plan) {
  return {{"fprop_x", describe(plan.fprop.a)},  {"fprop_w", describe(plan.fprop.b)},
          {"dgrad_dy", describe(plan.dgrad.a)}, {"dgrad_w", describe(plan.dgrad.b)},
          {"wgrad_dy", describe(plan.wgrad.a)}, {"wgrad_x", describe(plan.wgrad.b)}};
}

std::string text_at(const auto& json, const char* key) {
  return json.at(key).template get<std::string>();
}

/// Writes a saved format as it is written now.
void read_format(Json& json, const char* key) {
  json.at(key) = describe(parse_format(text_at(json, key)));
}

void read_operands(Json& json) {
  for (const auto& [key, name] : kOperands) {
    read_format(json, key);
  }
}

Lines only_in(const Lines& all, const Lines& not_in) {
  Lines found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const std::string& one) {
    return std::ranges::find(not_in, one) == not_in.end();
  });
  return found;
}

/// "a, b, c, and 4 more".
std::string first_names(const Lines& names) {
  constexpr size_t kNamed = 3;
  return joined(shortened(names, kNamed));
}

void add_change(const std::string& what, const std::string& was, const std::string& is,
                Lines& changes) {
  if (was != is) {
    changes.push_back(fmt::format("{}: was {}, is {}", what, was, is));
  }
}

/// Names that only one of two lists has.
void add_names(const char* what, const Lines& saved, const Lines& current, Lines& changes) {
  const std::pair<const char*, Lines> sides[] = {{"the checkpoint", only_in(saved, current)},
                                                 {"this run", only_in(current, saved)}};
  for (const auto& [side, names] : sides) {
    if (!names.empty()) {
      changes.push_back(fmt::format("{} only in {}: {}", what, side, first_names(names)));
    }
  }
}

/// The weight that the optimizer updates.
std::string updated_weight(const auto& formats) {
  return text_at(formats, formats.contains(kMaster) ? kMaster : kWeight);
}

void add_weight_changes(const Json& saved, const OrderedJson& current, Lines& changes) {
  const auto master = [](const auto& formats) { return formats.value(kMaster, "none"); };
  if (updated_weight(saved) != updated_weight(current)) {
    add_change("weight", text_at(saved, kWeight), text_at(current, kWeight), changes);
    add_change("master weight", master(saved), master(current), changes);
  }
}

/// Layers that differ in the same way share a line.
void add_layer_changes(const Json& saved, const OrderedJson& current, Lines& changes) {
  const auto names = [](const auto& layers) {
    Lines found;
    for (const auto& layer : layers.items()) {
      found.push_back(layer.key());
    }
    return found;
  };
  add_names("layers with a plan of their own", names(saved), names(current), changes);
  for (const auto& [key, role] : kOperands) {
    std::map<std::pair<std::string, std::string>, Lines> layers;  // by what was and what is
    for (const auto& [layer, operands] : current.items()) {
      if (saved.contains(layer)) {
        layers[{text_at(saved.at(layer), key), text_at(operands, key)}].push_back(layer);
      }
    }
    for (const auto& [formats, of_layers] : layers) {
      add_change(fmt::format("{} of {}", role, first_names(of_layers)), formats.first,
                 formats.second, changes);
    }
  }
}

/// The text of earlier versions: "FPROP; DGRAD; WGRAD; stored FORMAT; FORMATS in LAYER; TENSOR
/// TENSOR ", where a product is "A x B", and stored formats are those other than fp32.
std::string text_of(const OrderedJson& formats) {
  const auto products = [](const OrderedJson& of, const std::string& end) {
    return fmt::format("{} x {}{}{} x {}{}{} x {}{}", text_at(of, "fprop_x"),
                       text_at(of, "fprop_w"), end, text_at(of, "dgrad_dy"), text_at(of, "dgrad_w"),
                       end, text_at(of, "wgrad_dy"), text_at(of, "wgrad_x"), end);
  };
  std::string text = products(formats, "; ");
  Lines stored = {updated_weight(formats)};
  for (const auto& [key, name] : kStored) {
    stored.push_back(text_at(formats, key));
  }
  for (const std::string& format : stored) {
    text += format == describe(TensorFormat{}) ? "" : "stored " + format + "; ";
  }
  for (const auto& [name, operands] : formats.at(kLayers).items()) {
    text += products(operands, " in " + name + "; ");
  }
  for (const OrderedJson& tensor : formats.at(kScaledTensors)) {
    text += tensor.get<std::string>() + " ";
  }
  return text;
}

}  // namespace

nlohmann::ordered_json state_formats(Decoder& model) {
  const PrecisionPlan& plan = model.plan();
  OrderedJson formats = operands_of(plan);
  formats[kWeight] = describe(plan.weight);
  if (plan.master_weight) {
    formats[kMaster] =
        describe(plan.master_weight->remainder ? TensorFormat{} : *plan.master_weight);
  }
  formats["weight_gradient"] = describe(plan.weight_gradient);
  formats["gradient_wire"] = describe(plan.gradient_wire);
  formats["moment1"] = describe(plan.moment1);
  formats["moment2"] = describe(plan.moment2);
  OrderedJson layers = OrderedJson::object();
  for (const LinearPlan& linear : model.linear_plans()) {
    if (!linear.layer_plan.empty() && linear.is_scaled()) {
      layers[linear.site.name] = operands_of(linear);
    }
  }
  formats[kLayers] = std::move(layers);
  formats[kScaledTensors] = model.scaling().names();
  return formats;
}

nlohmann::json read_state_formats(nlohmann::json saved) {
  read_operands(saved);
  read_format(saved, kWeight);
  if (saved.contains(kMaster)) {
    read_format(saved, kMaster);
  }
  for (const auto& [key, name] : kStored) {
    read_format(saved, key);
  }
  for (Json& operands : saved.at(kLayers)) {
    read_operands(operands);
  }
  static_cast<void>(saved.at(kScaledTensors).get<Lines>());  // throws if it is no list of texts
  return saved;
}

std::vector<std::string> format_changes(const nlohmann::json& saved,
                                        const nlohmann::ordered_json& current) {
  Lines changes;
  if (saved.is_string()) {
    // Still earlier versions say "kept" for "stored".
    add_change("formats", replaced(saved.get<std::string>(), "; kept ", "; stored "),
               text_of(current), changes);
    return changes;
  }
  const Json before = read_state_formats(saved);
  const auto add_roles = [&](const auto& roles) {
    for (const auto& [key, name] : roles) {
      add_change(name, text_at(before, key), text_at(current, key), changes);
    }
  };
  add_roles(kOperands);
  add_weight_changes(before, current, changes);
  add_roles(kStored);
  add_layer_changes(before.at(kLayers), current.at(kLayers), changes);
  add_names("scaled tensors", before.at(kScaledTensors).get<Lines>(),
            current.at(kScaledTensors).get<Lines>(), changes);
  return changes;
}

}  // namespace fp8train
