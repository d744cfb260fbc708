// fp8train explain: what really runs in which format. The resolved row of the chart, then every
// linear layer's three GEMMs and why a layer is exempt.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

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

void print_text(const PrecisionPlan& plan, const std::vector<LinearPlan>& linears) {
  fmt::print("row {}\n", plan.name);
  for (const auto& [role, format] : cells(plan)) {
    fmt::print("  {:<18}{}\n", role, format);
  }
  size_t scaled = 0;
  fmt::print("\n{:<28}{:<16}{}\n", "linear layer", "[out, in]", "fprop | dgrad | wgrad");
  for (const LinearPlan& linear : linears) {
    const std::string shape =
        fmt::format("[{}, {}]", linear.site.out_features, linear.site.in_features);
    const auto gemm = [](const GemmPlan& g) {
      return fmt::format("{} x {}{}", name_of(g.a.dtype), name_of(g.b.dtype),
                         g.fast_accumulate ? " fast" : "");
    };
    fmt::print("{:<28}{:<16}{} | {} | {}{}\n", linear.site.name, shape, gemm(linear.fprop),
               gemm(linear.dgrad), gemm(linear.wgrad),
               linear.exempt_reason.empty() ? "" : "   exempt: " + linear.exempt_reason);
    scaled += linear.is_scaled() ? 1 : 0;
  }
  fmt::print("\n{} of {} linear layers run in scaled formats. In {}: {}.\n", scaled, linears.size(),
             name_of(plan.activation), kOutside);
}

void print_json(const PrecisionPlan& plan, const std::vector<LinearPlan>& linears) {
  nlohmann::ordered_json json = {{"plan", plan.name}};
  for (const auto& [role, format] : cells(plan)) {
    json["row"][role] = format;
  }
  for (const LinearPlan& linear : linears) {
    const auto gemm = [](const GemmPlan& g) {
      return nlohmann::ordered_json{
          {"a", describe(g.a)}, {"b", describe(g.b)}, {"fast_accumulate", g.fast_accumulate}};
    };
    json["linears"].push_back({{"name", linear.site.name},
                               {"out_features", linear.site.out_features},
                               {"in_features", linear.site.in_features},
                               {"scaled", linear.is_scaled()},
                               {"exempt_reason", linear.exempt_reason},
                               {"fprop", gemm(linear.fprop)},
                               {"dgrad", gemm(linear.dgrad)},
                               {"wgrad", gemm(linear.wgrad)}});
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
    const std::vector<LinearPlan> linears =
        plan_linears(session.engine.plan, linear_sites(session.engine.model));
    (options->json ? print_json : print_text)(session.engine.plan, linears);
    return 0;
  });
}

}  // namespace fp8train
