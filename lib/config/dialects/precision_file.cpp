#include "config/dialects/dialects.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "base/text.h"
#include "config/dialects/pass.h"
#include "config/fields/field.h"
#include "config/yaml/yaml_tree.h"

namespace fp8train {
namespace {

using Kind = YamlNode::Kind;

constexpr const char* kType = "transformer_engine_config_type";
constexpr const char* kParams = "TEQuantizationParams";

/// Names the layers of a decoder's blocks (Megatron-LM,
/// megatron/core/models/gpt/gpt_layer_specs.py).
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

constexpr const char* kFlag = "true or false";

class PrecisionFile {
 public:
  std::vector<LayerRequest> read(const FieldValue& root) {
    std::optional<FieldValue> matchers;
    read_keys(root, "configs and matchers",
              {{"configs", [&](const FieldValue& it) { return read_configs(it); }},
               {"matchers", [&](const FieldValue& it) { return keep(it, matchers); }}});
    if (matchers && matchers->node().kind != Kind::null) {
      for_each_key(*matchers, "named matchers",
                   [&](const std::string& /*name*/, const FieldValue& it) { read_matcher(it); });
    }
    std::reverse(layers_.begin(), layers_.end());
    return std::move(layers_);
  }

 private:
  static bool keep(const FieldValue& value, std::optional<FieldValue>& to) {
    to.emplace(value);
    return true;
  }

  bool read_configs(const FieldValue& configs) {
    return for_each_key(configs, "named configurations",
                        [&](const std::string& name, const FieldValue& config) {
                          known_.push_back(name);
                          if (const auto request = read_config(config)) {
                            requests_[name] = *request;
                          }
                        });
  }

  static std::optional<LayerRequest> read_config(const FieldValue& config) {
    std::optional<FieldValue> type, training, evaluation;
    const bool good = read_keys(
        config, fmt::format("{}: {}", kType, kParams),
        {{kType, [&](const FieldValue& it) { return keep(it, type); }},
         {"training_recipe", [&](const FieldValue& it) { return keep(it, training); }},
         {"evaluation_recipe", [&](const FieldValue& it) { return keep(it, evaluation); }}});
    if (!good) {
      return std::nullopt;
    }
    if (!type || !training) {
      config.fail(fmt::format("missing {}", type ? "training_recipe" : kType));
      return std::nullopt;
    }
    if (type->node().text != kParams) {
      type->expected(kParams);
    }
    const Recipe trained = read_recipe(*training);
    LayerRequest request;
    request.plan = trained.plan.empty() ? "bf16" : trained.plan;
    if (!trained.plan.empty()) {
      request.format = trained.format;
      request.evaluate_scaled = true;
    }
    request.in_scaled_run = trained.in_scaled_run;
    request.in_plain_run = trained.in_plain_run;
    request.naming = megatron_naming();
    if (evaluation) {
      check_evaluation(*evaluation, trained, request);
    }
    return request;
  }

  /// Evaluation has the recipe of training, or none.
  static void check_evaluation(const FieldValue& evaluation, const Recipe& trained,
                               LayerRequest& request) {
    const Recipe evaluated = read_recipe(evaluation);
    if (trained.plan.empty() && !evaluated.plan.empty()) {
      evaluation.fail(
          "evaluates in FP8 what is trained in bf16, which no plan here does: remove it, or say "
          "{}");
    } else if (!trained.plan.empty()) {
      request.evaluate_scaled = !evaluated.plan.empty();
      const bool alike = evaluated.plan == trained.plan && evaluated.format == trained.format;
      if (!evaluated.plan.empty() && !alike) {
        evaluation.fail(
            "evaluation has the recipe of training, or none ({}): another one is not there");
      }
    }
  }

  static Recipe read_recipe(const FieldValue& value) {
    Recipe recipe;
    const auto option = [](std::string name, std::function<void(const FieldValue&)> read) {
      return KeyReader{std::move(name), [read = std::move(read)](const FieldValue& it) {
                         if (it.node().kind != Kind::null) {
                           read(it);
                         }
                         return true;
                       }};
    };
    const auto refuse_stored = [](const FieldValue& it) {
      if (read_bool(it, kFlag).value_or(false)) {
        it.fail(
            "what is stored of weights is the run's for all layers: remove it, and choose a plan, "
            "or precision.weight, for the run");
      }
    };
    read_keys(value, "the fields of a recipe, or {} for bf16",
              {option("fp8_quantization_recipe", [&](auto& it) { read_plan(it, recipe); }),
               option("fp8_format",
                      [&](auto& it) {
                        const std::string& text = it.node().text;
                        recipe.format = text == "hybrid" ? Fp8Format::hybrid : Fp8Format::e4m3;
                        if (text != "e4m3" && text != "hybrid") {
                          it.expected("e4m3 or hybrid");
                        }
                      }),
               option("override_quantized_autocast",
                      [&](auto& it) { assign(recipe.in_scaled_run, read_bool(it, kFlag)); }),
               option("override_nonquantized_autocast",
                      [&](auto& it) { assign(recipe.in_plain_run, read_bool(it, kFlag)); }),
               // Current scales and those of blocks follow from a rank's own tensor.
               option("tp_only_amax_red", [](auto& it) { read_bool(it, kFlag); }),
               option("fp8_param", refuse_stored), option("fp4_param", refuse_stored),
               option("fp4_quantization_recipe",
                      [&](auto& it) {
                        recipe.plan = "te-nvfp4";
                        if (it.node().text != "nvfp4") {
                          it.expected("nvfp4");
                        }
                      }),
               option("custom_recipe_factory",
                      [](auto& it) { it.fail("no code is loaded from a file: name a recipe"); })});
    return recipe;
  }

  static void read_plan(const FieldValue& value, Recipe& recipe) {
    if (const auto plan = dialects::find_word(kRecipes, value.node().text)) {
      recipe.plan = *plan;
    } else if (value.node().text == "delayed") {
      value.fail("delayed scaling is not for single layers, as in Megatron: choose tensorwise");
    } else {
      value.expected("tensorwise, blockwise or mxfp8");
    }
  }

  /// One that is not enabled does not count, whatever else it says.
  void read_matcher(const FieldValue& matcher) {
    std::map<std::string, FieldValue> fields;
    for_each_key(
        matcher, "config, type, pattern and enabled",
        [&](const std::string& name, const FieldValue& value) { fields.emplace(name, value); });
    const auto enabled = fields.find("enabled");
    if (enabled == fields.end() || !read_bool(enabled->second, kFlag).value_or(false)) {
      return;
    }
    for (const char* name : {"type", "pattern", "config"}) {
      if (!fields.contains(name) || fields.at(name).node().kind != Kind::scalar) {
        matcher.fail(fmt::format("missing {}", name));
        return;
      }
    }
    const FieldValue& config = fields.at("config");
    const std::string& pattern = fields.at("pattern").node().text;
    const auto request = requests_.find(config.node().text);
    if (fields.at("type").node().text != "glob") {
      fields.at("type").expected("glob");
    } else if (pattern.find('[') != std::string::npos) {
      fields.at("pattern").fail(
          "sets of characters ([...]) are not read: write a matcher for each with * and ?");
    } else if (request != requests_.end()) {
      layers_.push_back(request->second);
      layers_.back().pattern = pattern;
    } else if (std::find(known_.begin(), known_.end(), config.node().text) == known_.end()) {
      const std::string near = nearest_name(config.node().text, known_);
      config.fail(fmt::format("no configuration '{}'{}; there are: {}", config.node().text,
                              near.empty() ? "" : fmt::format(", did you mean {}?", near),
                              joined(known_)));
    }
  }

  std::vector<std::string> known_;
  std::map<std::string, LayerRequest> requests_;
  std::vector<LayerRequest> layers_;
};

}  // namespace

std::vector<LayerRequest> read_precision_file(const std::string& path, const std::string& text,
                                              Problems& problems) {
  const size_t source = problems.add_source(path, true);
  const YamlNode root = parse_yaml(text, "", source, problems);
  return root.reported
             ? std::vector<LayerRequest>()
             : PrecisionFile().read({root, "", {source, root.line, root.column}, problems});
}

}  // namespace fp8train
