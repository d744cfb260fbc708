// fp8train explain: what really runs in which format. The resolved row of the chart, then every
// linear layer's three GEMMs and why a layer is exempt.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "device/cuda/cuda_device.h"
#include "nn/linear_operands.h"
#include "train/session.h"
#include "verbs.h"

namespace fp8train {
namespace {

struct ExplainOptions {
  CommonOptions common;
  bool json = false;
};

std::vector<std::pair<std::string, std::string>> cells(const PrecisionPlan& plan) {
  const auto gemm = [](const GemmPlan& g) { return describe(g.a) + "  x  " + describe(g.b); };
  return {{"fprop x, w", gemm(plan.fprop)},
          {"dgrad dy, w", gemm(plan.dgrad)},
          {"wgrad dy, x", gemm(plan.wgrad)},
          {"saved activation", describe(plan.saved_activation)},
          {"activations", std::string(name_of(plan.activation))},
          {"weight", describe(plan.weight)},
          {"master weight", plan.master_weight ? describe(*plan.master_weight) : "-"},
          {"weight gradient", describe(plan.weight_gradient)},
          {"gradient wire", describe(plan.gradient_wire)},
          {"parameter wire", describe(plan.parameter_wire)},
          {"moment 1", describe(plan.moment1)},
          {"moment 2", describe(plan.moment2)},
          {"loss scaling", plan.dynamic_loss_scaling ? "dynamic" : "-"},
          {"evaluation", plan.evaluate_scaled || !plan.fprop.a.is_scaled()
                             ? "in the same formats"
                             : std::string("in ") + std::string(name_of(plan.activation))}};
}

/// What never runs in a scaled format, whatever the row.
constexpr const char* kOutside =
    "embedding, norms, rotary embedding, attention's own products, activations, soft-max and loss";

bool reads_granules(const GemmPlan& gemm) {
  return gemm.a.is_scaled() && gemm.a.granularity != Granularity::tensor;
}

/// The layers of a plan and, for each GEMM of each, why its operands are dequantized.
struct Layers {
  std::vector<LinearPlan> linears;
  std::vector<std::array<std::string_view, 3>> dequantized;
};

/// Granular products depend on the GPU: where the run would use the one of this machine, it is
/// asked.
Layers explained_layers(const Session& session) {
  Layers layers;
  layers.linears = plan_linears(session.engine.plan, linear_sites(session.engine.model));
  const std::string& setting = session.settings.device;
  DeviceTraits traits;
  const bool granular =
      std::any_of(layers.linears.begin(), layers.linears.end(), [](const LinearPlan& linear) {
        return reads_granules(linear.fprop) || reads_granules(linear.dgrad) ||
               reads_granules(linear.wgrad);
      });
  if (granular && setting != "cpu" && why_cuda_is_unusable().empty()) {
    std::string reason;
    traits = choose_device(setting, false, reason)->traits();
  }
  const int64_t rows = session.engine.micro_batch_size * session.engine.seq_length;
  for (const LinearPlan& linear : layers.linears) {
    layers.dequantized.push_back(dequantized_because(traits, linear, rows));
  }
  return layers;
}

void print_reasons(const Layers& layers) {
  std::map<std::string_view, int> reasons;
  for (const auto& layer : layers.dequantized) {
    for (const std::string_view reason : layer) {
      reasons[reason] += reason.empty() ? 0 : 1;
    }
  }
  for (const auto& [reason, gemms] : reasons) {
    if (gemms > 0) {
      fmt::print("{} GEMMs multiply operands dequantized to a type of 16 bits: {}.\n", gemms,
                 reason);
    }
  }
}

void print_text(const PrecisionPlan& plan, const Layers& layers) {
  const std::vector<LinearPlan>& linears = layers.linears;
  fmt::print("row {}\n", plan.name);
  for (const auto& [role, format] : cells(plan)) {
    fmt::print("  {:<18}{}\n", role, format);
  }
  size_t scaled = 0;
  fmt::print("\n{:<28}{:<16}{}\n", "linear layer", "[out, in]", "fprop | dgrad | wgrad");
  for (size_t i = 0; i < linears.size(); ++i) {
    const LinearPlan& linear = linears[i];
    const std::string shape =
        fmt::format("[{}, {}]", linear.site.out_features, linear.site.in_features);
    const auto gemm = [&](const GemmPlan& g, size_t which) {
      return fmt::format("{} x {}{}{}", name_of(g.a.dtype), name_of(g.b.dtype),
                         g.fast_accumulate ? " fast" : "",
                         layers.dequantized[i][which].empty() ? "" : " dequantized");
    };
    fmt::print("{:<28}{:<16}{} | {} | {}{}\n", linear.site.name, shape, gemm(linear.fprop, 0),
               gemm(linear.dgrad, 1), gemm(linear.wgrad, 2),
               linear.exempt_reason.empty() ? "" : "   exempt: " + linear.exempt_reason);
    scaled += linear.is_scaled() ? 1 : 0;
  }
  fmt::print("\n{} of {} linear layers run in scaled formats. In {}: {}.\n", scaled, linears.size(),
             name_of(plan.activation), kOutside);
  print_reasons(layers);
}

void print_json(const PrecisionPlan& plan, const Layers& layers) {
  nlohmann::ordered_json json = {{"plan", plan.name}};
  for (const auto& [role, format] : cells(plan)) {
    json["row"][role] = format;
  }
  for (size_t i = 0; i < layers.linears.size(); ++i) {
    const LinearPlan& linear = layers.linears[i];
    const auto gemm = [&](const GemmPlan& g, size_t which) {
      return nlohmann::ordered_json{{"a", describe(g.a)},
                                    {"b", describe(g.b)},
                                    {"fast_accumulate", g.fast_accumulate},
                                    {"dequantized", std::string(layers.dequantized[i][which])}};
    };
    json["linears"].push_back({{"name", linear.site.name},
                               {"out_features", linear.site.out_features},
                               {"in_features", linear.site.in_features},
                               {"scaled", linear.is_scaled()},
                               {"exempt_reason", linear.exempt_reason},
                               {"fprop", gemm(linear.fprop, 0)},
                               {"dgrad", gemm(linear.dgrad, 1)},
                               {"wgrad", gemm(linear.wgrad, 2)}});
  }
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

void add_explain(Arguments verb, Action& action) {
  auto options = std::make_shared<ExplainOptions>();
  add_common(verb, options->common);
  verb.flag("--json", options->json, "As JSON");
  verb.run(action, [options] {
    const Session session = open_session(load(options->common), false);
    (options->json ? print_json : print_text)(session.engine.plan, explained_layers(session));
    return 0;
  });
}

}  // namespace fp8train
