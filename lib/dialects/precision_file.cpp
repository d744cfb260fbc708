#include "dialects/precision_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "config/field.h"
#include "config/yaml_tree.h"
#include "dialects/pass.h"

namespace fp8train {
namespace {

using Kind = YamlNode::Kind;

constexpr const char* kType = "transformer_engine_config_type";
constexpr const char* kParams = "TEQuantizationParams";

/// Of a decoder's blocks (Megatron-LM, megatron/core/models/gpt/gpt_layer_specs.py).
const LayerNaming& megatron_naming() {
  static const LayerNaming kNaming = {"decoder.",
                                      {{"attention.qkv", "self_attention.linear_qkv"},
                                       {"attention.output", "self_attention.linear_proj"},
                                       {"mlp.up", "mlp.linear_fc1"},
                                       {"mlp.down", "mlp.linear_fc2"}}};
  return kNaming;
}

constexpr dialects::Words kRecipes[] = {
    {"tensorwise", "te-current"}, {"blockwise", "te-blockwise"}, {"mxfp8", "te-mxfp8"}};

/// One recipe; without a plan the layer stays out of scaled formats.
struct Recipe {
  std::string plan;
  Fp8Format format = Fp8Format::e4m3;
  bool in_scaled_run = true, in_plain_run = false;
};

class PrecisionFile {
 public:
  PrecisionFile(const std::string& path, Problems& problems)
      : problems_(problems), source_(problems.add_source(path, true)) {}

  std::vector<LayerRequest> read(const std::string& text) {
    const YamlNode root = parse_yaml(text, "", source_, problems_);
    if (root.reported) {
      return {};
    }
    const YamlNode* matchers = nullptr;
    if (!is_map(root, "", "expected configs and matchers")) {
      return {};
    }
    for (size_t i = 0; i < root.items.size(); ++i) {
      if (root.keys[i].text == "configs") {
        read_configs(root.items[i]);
      } else if (root.keys[i].text == "matchers") {
        matchers = &root.items[i];
      } else {
        complain(root.keys[i], root.keys[i].text, "unknown key; there are: configs, matchers");
      }
    }
    if (matchers != nullptr && matchers->kind != Kind::null) {
      read_matchers(*matchers);
    }
    std::reverse(layers_.begin(), layers_.end());
    return std::move(layers_);
  }

 private:
  template <class Place>
  void complain(const Place& place, const std::string& key, const std::string& text) {
    problems_.add({source_, place.line, place.column}, key, text);
  }

  bool is_map(const YamlNode& node, const std::string& key, const std::string& text) {
    if (node.kind != Kind::map && !node.reported) {
      complain(node, key, text + ", got " + describe(node));
    }
    return node.kind == Kind::map;
  }

  std::optional<bool> flag(const YamlNode& node, const std::string& key) {
    const std::optional<bool> value = dialects::flag_in(node);
    if (!value) {
      complain(node, key, "expected true or false, got " + describe(node));
    }
    return value;
  }

  void read_configs(const YamlNode& configs) {
    if (!is_map(configs, "configs", "expected named configurations")) {
      return;
    }
    for (size_t i = 0; i < configs.items.size(); ++i) {
      const std::string& name = configs.keys[i].text;
      const std::string key = "configs." + name;
      known_.push_back(name);
      if (is_map(configs.items[i], key, fmt::format("expected {}: {}", kType, kParams))) {
        read_config(configs.items[i], key, requests_[name]);
      }
    }
  }

  void read_config(const YamlNode& config, const std::string& key, LayerRequest& request) {
    const YamlNode* training = nullptr;
    const YamlNode* evaluation = nullptr;
    bool typed = false;
    for (size_t i = 0; i < config.items.size(); ++i) {
      const std::string& name = config.keys[i].text;
      const YamlNode& node = config.items[i];
      if (name == kType) {
        typed = true;
        if (node.text != kParams) {
          complain(node, fmt::format("{}.{}", key, name),
                   fmt::format("expected {}, got {}", kParams, describe(node)));
        }
      } else if (name == "training_recipe") {
        training = &node;
      } else if (name == "evaluation_recipe") {
        evaluation = &node;
      } else {
        complain(
            config.keys[i], fmt::format("{}.{}", key, name),
            fmt::format("unknown key; there are: {}, training_recipe, evaluation_recipe", kType));
      }
    }
    if (!typed || training == nullptr) {
      complain(config, key,
               fmt::format("missing {}", typed ? "training_recipe" : std::string(kType)));
      return;
    }
    const Recipe trained = read_recipe(*training, key + ".training_recipe");
    request.plan = trained.plan.empty() ? "bf16" : trained.plan;
    if (!trained.plan.empty()) {
      request.format = trained.format;
    }
    request.in_scaled_run = trained.in_scaled_run;
    request.in_plain_run = trained.in_plain_run;
    request.naming = megatron_naming();
    if (trained.plan.empty()) {
      check_evaluation_in_bf16(evaluation, key);
    } else {
      request.evaluate_scaled = evaluates_scaled(evaluation, trained, key);
    }
  }

  void check_evaluation_in_bf16(const YamlNode* evaluation, const std::string& key) {
    const std::string place = key + ".evaluation_recipe";
    if (evaluation != nullptr && !read_recipe(*evaluation, place).plan.empty()) {
      complain(*evaluation, place,
               "evaluates in FP8 what is trained in bf16, which no plan here does: remove it, or "
               "say {}");
    }
  }

  /// Evaluation has the recipe of training, or none.
  bool evaluates_scaled(const YamlNode* evaluation, const Recipe& trained, const std::string& key) {
    if (evaluation == nullptr) {
      return true;
    }
    const std::string place = key + ".evaluation_recipe";
    const Recipe evaluated = read_recipe(*evaluation, place);
    if (evaluated.plan.empty()) {
      return false;
    }
    if (evaluated.plan != trained.plan || evaluated.format != trained.format) {
      complain(*evaluation, place,
               "evaluation has the recipe of training, or none ({}): another one is not there");
    }
    return true;
  }

  Recipe read_recipe(const YamlNode& node, const std::string& key) {
    Recipe recipe;
    if (!is_map(node, key, "expected the fields of a recipe, or {} for bf16")) {
      return recipe;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      read_option(node.keys[i], node.items[i], key + "." + node.keys[i].text, recipe);
    }
    return recipe;
  }

  void read_option(const YamlKey& name, const YamlNode& node, const std::string& key,
                   Recipe& recipe) {
    if (node.kind == Kind::null) {
      return;
    }
    if (name.text == "fp8_quantization_recipe") {
      read_plan(node, key, recipe);
    } else if (name.text == "fp8_format") {
      recipe.format = node.text == "hybrid" ? Fp8Format::hybrid : Fp8Format::e4m3;
      if (node.text != "e4m3" && node.text != "hybrid") {
        complain(node, key, "expected e4m3 or hybrid, got " + describe(node));
      }
    } else if (name.text == "override_quantized_autocast") {
      recipe.in_scaled_run = flag(node, key).value_or(true);
    } else if (name.text == "override_nonquantized_autocast") {
      recipe.in_plain_run = flag(node, key).value_or(false);
    } else if (name.text == "tp_only_amax_red") {
      flag(node, key);  // current scales and those of blocks follow from a rank's own tensor
    } else if (name.text == "fp8_param" || name.text == "fp4_param") {
      if (flag(node, key).value_or(false)) {
        complain(node, key,
                 "what is stored of weights is the run's for all layers: remove it, and choose a "
                 "plan, or precision.weight, for the run");
      }
    } else if (name.text == "fp4_quantization_recipe") {
      recipe.plan = "te-nvfp4";
      if (node.text != "nvfp4") {
        complain(node, key, "expected nvfp4, got " + describe(node));
      }
    } else if (name.text == "custom_recipe_factory") {
      complain(node, key, "no code is loaded from a file: name a recipe");
    } else {
      complain(name, key, "no field of a recipe");
    }
  }

  void read_plan(const YamlNode& node, const std::string& key, Recipe& recipe) {
    const auto found = dialects::find_in(kRecipes, node.text);
    if (found != std::end(kRecipes)) {
      recipe.plan = found->second;
    } else if (node.text == "delayed") {
      complain(node, key,
               "delayed scaling is not for single layers, as in Megatron: choose tensorwise");
    } else {
      complain(node, key, "expected tensorwise, blockwise or mxfp8, got " + describe(node));
    }
  }

  void read_matchers(const YamlNode& matchers) {
    if (!is_map(matchers, "matchers", "expected named matchers")) {
      return;
    }
    for (size_t i = 0; i < matchers.items.size(); ++i) {
      const std::string key = "matchers." + matchers.keys[i].text;
      if (is_map(matchers.items[i], key, "expected config, type, pattern and enabled")) {
        read_matcher(matchers.items[i], key);
      }
    }
  }

  /// One that is not enabled does not count, whatever else it says.
  void read_matcher(const YamlNode& matcher, const std::string& key) {
    std::map<std::string, const YamlNode*> fields;
    for (size_t i = 0; i < matcher.items.size(); ++i) {
      fields[matcher.keys[i].text] = &matcher.items[i];
    }
    const auto enabled = fields.find("enabled");
    if (enabled == fields.end() || !flag(*enabled->second, key + ".enabled").value_or(false)) {
      return;
    }
    for (const char* name : {"type", "pattern", "config"}) {
      if (!fields.contains(name) || fields[name]->kind != Kind::scalar) {
        complain(matcher, key, fmt::format("missing {}", name));
        return;
      }
    }
    if (fields["type"]->text != "glob") {
      complain(*fields["type"], key + ".type", "expected glob, got " + describe(*fields["type"]));
      return;
    }
    const std::string& pattern = fields["pattern"]->text;
    if (pattern.find('[') != std::string::npos) {
      complain(*fields["pattern"], key + ".pattern",
               "sets of characters ([...]) are not read: write a matcher for each with * and ?");
      return;
    }
    const std::string& config = fields["config"]->text;
    const auto request = requests_.find(config);
    if (request != requests_.end()) {
      layers_.push_back(request->second);
      layers_.back().pattern = pattern;
    } else if (std::find(known_.begin(), known_.end(), config) == known_.end()) {
      const std::string near = nearest_name(config, known_);
      complain(
          *fields["config"], key + ".config",
          fmt::format("no configuration '{}'{}; there are: {}", config,
                      near.empty() ? "" : fmt::format(", did you mean {}?", near), joined(known_)));
    }
  }

  Problems& problems_;
  size_t source_;
  std::vector<std::string> known_;
  std::map<std::string, LayerRequest> requests_;
  std::vector<LayerRequest> layers_;
};

}  // namespace

std::vector<LayerRequest> read_precision_file(const std::string& path, const std::string& text,
                                              Problems& problems) {
  return PrecisionFile(path, problems).read(text);
}

}  // namespace fp8train
