#include "train/checkpoint/state_formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"

namespace fp8train {
namespace {

using Lines = std::vector<std::string>;

/// A format of `Formats`, by its name in state.json and in messages.
template <typename Formats>
struct NamedFormat {
  const char* key;
  const char* name;
  TensorFormat Formats::*format;
};

constexpr NamedFormat<OperandFormats> kOperands[] = {
    {"fprop_x", "fprop x", &OperandFormats::fprop_x},
    {"fprop_w", "fprop w", &OperandFormats::fprop_w},
    {"dgrad_dy", "dgrad dy", &OperandFormats::dgrad_dy},
    {"dgrad_w", "dgrad w", &OperandFormats::dgrad_w},
    {"wgrad_dy", "wgrad dy", &OperandFormats::wgrad_dy},
    {"wgrad_x", "wgrad x", &OperandFormats::wgrad_x}};

constexpr NamedFormat<StateFormats> kStored[] = {
    {"weight_gradient", "weight gradient", &StateFormats::weight_gradient},
    {"gradient_wire", "gradient wire", &StateFormats::gradient_wire},
    {"moment1", "moment 1", &StateFormats::moment1},
    {"moment2", "moment 2", &StateFormats::moment2}};

constexpr const char* kWeight = "weight";
constexpr const char* kMaster = "master_weight";
constexpr const char* kLayers = "layers";
constexpr const char* kScaledTensors = "scaled_tensors";

/// Returns the operands' formats of a model's plan, or of a layer's.
template <typename Plan>
OperandFormats operands_of(const Plan& plan) {
  return {.fprop_x = plan.fprop.a,
          .fprop_w = plan.fprop.b,
          .dgrad_dy = plan.dgrad.a,
          .dgrad_w = plan.dgrad.b,
          .wgrad_dy = plan.wgrad.a,
          .wgrad_x = plan.wgrad.b};
}

template <typename Formats, size_t Count>
void write_formats(const Formats& formats, const NamedFormat<Formats> (&list)[Count],
                   nlohmann::ordered_json& json) {
  for (const NamedFormat<Formats>& one : list) {
    json[one.key] = describe(formats.*one.format);
  }
}

TensorFormat read_format(const nlohmann::json& json, const char* key) {
  return parse_format(json.at(key).get<std::string>());
}

template <typename Formats, size_t Count>
void read_formats(const nlohmann::json& json, const NamedFormat<Formats> (&list)[Count],
                  Formats& formats) {
  for (const NamedFormat<Formats>& one : list) {
    formats.*one.format = read_format(json, one.key);
  }
}

Lines only_in(const Lines& all, const Lines& not_in) {
  Lines found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const std::string& one) {
    return std::ranges::find(not_in, one) == not_in.end();
  });
  return found;
}

/// "a, b, c and 4 more".
std::string first_names(Lines names) {
  constexpr size_t kMostNamed = 3;
  const size_t left = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - left);
  return joined(names) + (left > 0 ? fmt::format(" and {} more", left) : "");
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

void add_weight_changes(const StateFormats& saved, const StateFormats& current, Lines& changes) {
  const auto updated = [](const StateFormats& formats) {
    return describe(formats.master_weight.value_or(formats.weight));
  };
  const auto master = [](const StateFormats& formats) {
    return formats.master_weight ? describe(*formats.master_weight) : "none";
  };
  if (updated(saved) != updated(current)) {
    add_change("weight", describe(saved.weight), describe(current.weight), changes);
    add_change("master weight", master(saved), master(current), changes);
  }
}

/// Layers that differ in the same way share a line.
void add_layer_changes(const StateFormats& saved, const StateFormats& current, Lines& changes) {
  const auto names = [](const StateFormats& formats) {
    Lines found;
    std::ranges::transform(formats.layers, std::back_inserter(found), &LayerFormats::name);
    return found;
  };
  add_names("layers with a plan of their own", names(saved), names(current), changes);
  for (const auto& operand : kOperands) {
    std::map<std::pair<std::string, std::string>, Lines> layers;  // by what was and what is
    for (const LayerFormats& layer : current.layers) {
      const auto before = std::ranges::find(saved.layers, layer.name, &LayerFormats::name);
      if (before != saved.layers.end()) {
        layers[{describe(before->operands.*operand.format),
                describe(layer.operands.*operand.format)}]
            .push_back(layer.name);
      }
    }
    for (const auto& [formats, of_layers] : layers) {
      add_change(fmt::format("{} of {}", operand.name, first_names(of_layers)), formats.first,
                 formats.second, changes);
    }
  }
}

/// The text of earlier versions: "FPROP; DGRAD; WGRAD; stored FORMAT; FORMATS in LAYER; TENSOR
/// TENSOR ", where a product is "A x B", and stored formats are those other than fp32.
std::string text_of(const StateFormats& formats) {
  const auto products = [](const OperandFormats& of, const std::string& end) {
    return fmt::format("{} x {}{}{} x {}{}{} x {}{}", describe(of.fprop_x), describe(of.fprop_w),
                       end, describe(of.dgrad_dy), describe(of.dgrad_w), end, describe(of.wgrad_dy),
                       describe(of.wgrad_x), end);
  };
  std::string text = products(formats.operands, "; ");
  for (const TensorFormat& stored :
       {formats.master_weight.value_or(formats.weight), formats.weight_gradient,
        formats.gradient_wire, formats.moment1, formats.moment2}) {
    text += stored == TensorFormat{} ? "" : "stored " + describe(stored) + "; ";
  }
  for (const LayerFormats& layer : formats.layers) {
    text += products(layer.operands, " in " + layer.name + "; ");
  }
  for (const std::string& tensor : formats.scaled_tensors) {
    text += tensor + " ";
  }
  return text;
}

}  // namespace

StateFormats state_formats(Decoder& model) {
  const PrecisionPlan& plan = model.plan();
  StateFormats formats = {.operands = operands_of(plan),
                          .weight = plan.weight,
                          .master_weight = plan.master_weight,
                          .weight_gradient = plan.weight_gradient,
                          .gradient_wire = plan.gradient_wire,
                          .moment1 = plan.moment1,
                          .moment2 = plan.moment2,
                          .layers = {},
                          .scaled_tensors = model.scaling().names()};
  if (formats.master_weight && formats.master_weight->remainder) {
    formats.master_weight = TensorFormat{};
  }
  for (const LinearPlan& linear : model.linear_plans()) {
    if (!linear.layer_plan.empty() && linear.is_scaled()) {
      formats.layers.push_back({linear.site.name, operands_of(linear)});
    }
  }
  return formats;
}

nlohmann::ordered_json json_of(const StateFormats& formats) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  write_formats(formats.operands, kOperands, json);
  json[kWeight] = describe(formats.weight);
  if (formats.master_weight) {
    json[kMaster] = describe(*formats.master_weight);
  }
  write_formats(formats, kStored, json);
  json[kLayers] = nlohmann::ordered_json::object();
  for (const LayerFormats& layer : formats.layers) {
    nlohmann::ordered_json operands = nlohmann::ordered_json::object();
    write_formats(layer.operands, kOperands, operands);
    json[kLayers][layer.name] = std::move(operands);
  }
  json[kScaledTensors] = formats.scaled_tensors;
  return json;
}

StateFormats read_state_formats(const nlohmann::json& json) {
  StateFormats formats;
  read_formats(json, kOperands, formats.operands);
  formats.weight = read_format(json, kWeight);
  if (json.contains(kMaster)) {
    formats.master_weight = read_format(json, kMaster);
  }
  read_formats(json, kStored, formats);
  for (const auto& [name, operands] : json.at(kLayers).items()) {
    formats.layers.push_back({name, {}});
    read_formats(operands, kOperands, formats.layers.back().operands);
  }
  formats.scaled_tensors = json.at(kScaledTensors).get<std::vector<std::string>>();
  return formats;
}

std::vector<std::string> format_changes(const StateFormats& saved, const StateFormats& current) {
  Lines changes;
  for (const auto& operand : kOperands) {
    add_change(operand.name, describe(saved.operands.*operand.format),
               describe(current.operands.*operand.format), changes);
  }
  add_weight_changes(saved, current, changes);
  for (const auto& stored : kStored) {
    add_change(stored.name, describe(saved.*stored.format), describe(current.*stored.format),
               changes);
  }
  add_layer_changes(saved, current, changes);
  add_names("scaled tensors", saved.scaled_tensors, current.scaled_tensors, changes);
  return changes;
}

std::vector<std::string> format_changes(const std::string& saved, const StateFormats& current) {
  Lines changes;
  // Still earlier versions say "kept" for "stored".
  add_change("formats", replaced(saved, "; kept ", "; stored "), text_of(current), changes);
  return changes;
}

}  // namespace fp8train
