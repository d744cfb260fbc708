// fp8train explain: what really runs in which format. The resolved plan, then
// every linear layer's three GEMMs and why a layer is exempt; or how the plan differs from another
// one; or the whole table of plans.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/key_error.h"
#include "base/screen.h"
#include "commands.h"
#include "config/load.h"
#include "layer_shares.h"
#include "optim/registry.h"
#include "overview.h"
#include "precision/plan_table.h"
#include "run_products.h"
#include "session_words.h"
#include "train/preflight.h"
#include "train/session.h"

namespace fp8train {
namespace {

struct ExplainOptions {
  RankOptions ranks;
  bool json = false;
  bool every_layer = false;
  bool plans = false;
  std::string diff;  ///< a plan's name
};

/// Names the operations that never run in a scaled format, whatever the plan.
std::string outside_of(const EngineSettings& engine) {
  const Fp8Attention attention = engine.plan.attention.gemms();
  return fmt::format(
      "embedding, norms, {}, {}activations, soft-max and loss",
      engine.model.positions == PositionKind::learned ? "learned positions" : "rotary embedding",
      attention == Fp8Attention::both      ? ""
      : attention == Fp8Attention::forward ? "attention's products in backward, "
                                           : "attention's own products, ");
}

/// The plan as a line of the table of plans and its roles, as the run's optimizer uses them.
struct ExplainedPlan {
  std::vector<PlanColumn> columns, roles;
  ParameterBytes bytes;
};

ExplainedPlan explained_plan(const Session& session) {
  const PrecisionPlan& plan = session.engine.plan;
  const OptimizerSettings& settings = session.engine.optimizer;
  const MomentRoles moments = optimizer_named(settings.name).moments(settings);
  ExplainedPlan shown = {table_columns(plan), plan_columns(plan), bytes_per_parameter(plan)};
  if (session.data_ranks * session.settings.parallelism.layout.context > 1 &&
      strategy_site(session.engine, {}).adds_shards()) {
    for (PlanColumn& role : shown.roles) {
      role.text +=
          role.title == std::string_view("gradient wire") ? ", once for each micro-batch" : "";
    }
  }
  if (moments.moment1 && moments.moment2) {
    return shown;
  }
  const std::string none = "none with " + settings.name;
  shown.bytes.moment1 = moments.moment1 ? shown.bytes.moment1 : 0.0;
  shown.bytes.moment2 = moments.moment2 ? shown.bytes.moment2 : 0.0;
  const std::string m = moments.moment1 ? describe(plan.moment1) : none;
  const std::string v = moments.moment2 ? describe(plan.moment2) : none;
  const std::pair<std::string_view, std::string> changed[] = {
      {"m + v", moments.moment1   ? m + ", no v"
                : moments.moment2 ? "no m, " + v
                                  : none},
      {"moment 1", m},
      {"moment 2", v},
      {kBytesColumn, fmt::format("{:.4g}", shown.bytes.total())}};
  for (std::vector<PlanColumn>* list : {&shown.columns, &shown.roles}) {
    for (PlanColumn& column : *list) {
      for (const auto& [title, text] : changed) {
        column.text = title == column.title ? text : column.text;
      }
    }
  }
  return shown;
}

/// A sentence below the tables.
template <class... Values>
void print_note(fmt::format_string<Values...> text, Values&&... values) {
  fmt::print("{}\n", wrapped(without_controls(fmt::format(text, std::forward<Values>(values)...)),
                             columns_of(stdout)));
}

/// A title and its text, in further lines below itself where it is long.
void print_row(std::string_view title, const std::string& text) {
  print_note("  {:<{}}{}", title, std::max<size_t>(20, title.size() + 1), text);
}

/// Prints the formats of GEMMs in short, the bytes of the plan, then every role.
void print_plan(const Session& session, const ExplainedDevice& device) {
  const PrecisionPlan& plan = session.engine.plan;
  const ExplainedPlan shown = explained_plan(session);
  print_fitted("plan {} ({})\n", plan.name, plan_origin(plan.name).source);
  print_row("device", device.line);
  for (const auto& [title, text] : shown.columns) {
    if (std::string_view(title) == kComputationColumn) {
      print_row(title, text);
    }
  }
  print_row(kBytesColumn,
            fmt::format("{:.4g}: weight {:.4g}, master {:.4g}, gradient {:.4g}, m {:.4g}, v {:.4g}",
                        shown.bytes.total(), shown.bytes.weight, shown.bytes.master,
                        shown.bytes.gradient, shown.bytes.moment1, shown.bytes.moment2));
  if (const std::string adapters = describe_adapters(session, device.traits); !adapters.empty()) {
    print_fitted("  {:<20}{}\n", "adapters", adapters);
  }
  const std::string_view note = optimizer_named(session.engine.optimizer.name).note;
  if (!note.empty()) {
    print_fitted("  {:<20}{}\n", "optimizer", note);
  }
  print_fitted("\nroles\n");
  for (const auto& [role, format] : shown.roles) {
    if (std::string_view(role) != kBytesColumn) {
      print_row(role, format);
    }
  }
}

void print_reasons(const RunProducts& layers) {
  std::map<std::string_view, int> reasons;
  for (size_t i = 0; i < layers.linears.size(); ++i) {
    for (size_t gemm = 0; gemm < layers.support[i].size(); ++gemm) {
      const std::string_view reason = layers.decoded_because(i, gemm);
      reasons[reason] += reason.empty() ? 0 : 1;
    }
  }
  for (const auto& [reason, gemms] : reasons) {
    if (gemms > 0) {
      print_note("{} GEMMs multiply operands dequantized to a type of 16 bits: {}.", gemms, reason);
    }
  }
}

/// Delayed scaling that is current at first, of any layer.
void print_first_window(const RunProducts& layers) {
  int steps = 0;
  for (const LinearPlan& linear : layers.linears) {
    steps = std::max(steps, linear.first_window());
  }
  if (steps > 0) {
    print_note(
        "In the first {0} steps, and in the {0} after an overflow of its own, a tensor that is "
        "'current at first' has its current scale. For that the host waits for the device once a "
        "step.",
        steps);
  }
}

void print_text(const Session& session, const ExplainedDevice& device, bool every_layer) {
  const PrecisionPlan& plan = session.engine.plan;
  const RunProducts layers = products_of(session.engine, device.traits);
  print_plan(session, device);
  print_fitted("{}", layers_text(layers, every_layer));
  print_fitted("{}", layer_shares_text(session));
  print_note("\n{}: {}.", plan.name, describe_products(layers, device.name));
  print_note("In {}: {}.", name_of(plan.activation), outside_of(session.engine));
  if (session.engine.model.moe.experts > 0) {
    print_note("In fp32: the routers of experts, with their scores and choices.");
  }
  if (const std::string refused = why_refused(session.engine, device); !refused.empty()) {
    print_note("{}", refused);
  }
  if (!device.known && layers.has_scaled()) {
    print_note("That is so on a GPU that has all of these products.");
  }
  print_first_window(layers);
  print_reasons(layers);
  for (const auto& [begin, end] : session.engine.plain_steps) {
    print_note("In steps {} to {} of {} no GEMM is scaled: all run in {} (precision.schedule).",
               begin + 1, end, session.max_steps, name_of(plan.activation));
  }
}

/// A role that differs between the plan and another one.
struct Difference {
  const char* role;
  std::string here, there;
};

std::vector<Difference> differences(const PrecisionPlan& plan, const PrecisionPlan& other) {
  const std::vector<PlanColumn> here = plan_columns(plan);
  const std::vector<PlanColumn> there = plan_columns(other);
  std::vector<Difference> result;
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i].text != there[i].text) {
      result.push_back({here[i].title, here[i].text, there[i].text});
    }
  }
  return result;
}

void print_differences(const PrecisionPlan& plan, const PrecisionPlan& other) {
  const std::vector<Difference> all = differences(plan, other);
  const std::string run_name = plan.name == other.name ? "the run" : plan.name;
  if (all.empty()) {
    print_fitted("{} and {} have the same roles\n", run_name, other.name);
    return;
  }
  for (const Difference& one : all) {
    print_fitted("{}\n", one.role);
    print_row(run_name, one.here);
    print_row(other.name, one.there);
  }
}

void print_differences_json(const PrecisionPlan& plan, const PrecisionPlan& other) {
  nlohmann::ordered_json json = {
      {"plan", plan.name}, {"other", other.name}, {"diff", nlohmann::ordered_json::object()}};
  for (const Difference& one : differences(plan, other)) {
    json["diff"][one.role] = {one.here, one.there};
  }
  fmt::print("{}\n", json_text(json, 2));
}

void print_json(const Session& session, const ExplainedDevice& device) {
  const PrecisionPlan& plan = session.engine.plan;
  const RunProducts layers = products_of(session.engine, device.traits);
  nlohmann::ordered_json json = {{"plan", plan.name},
                                 {"source", plan_origin(plan.name).source},
                                 {"device", device.line},
                                 {"products", describe_products(layers, device.name)},
                                 {"refused", why_refused(session.engine, device)},
                                 {"notes", lines_on_choices(session)}};
  const ExplainedPlan shown = explained_plan(session);
  for (const auto& [title, text] : shown.columns) {
    json["columns"][title] = text;
  }
  json["bytes_per_parameter"] = shown.bytes.total();
  json["optimizer"] = session.engine.optimizer.name;
  for (const auto& [role, format] : shown.roles) {
    json["roles"][role] = format;
  }
  json["outside"] = outside_of(session.engine);
  if (session.engine.model.moe.experts > 0) {
    json["routers"] = "fp32";
  }
  for (size_t i = 0; i < layers.linears.size(); ++i) {
    const LinearPlan& linear = layers.linears[i];
    const auto gemm = [&](const GemmPlan& g, size_t which) {
      return nlohmann::ordered_json{{"a", describe(g.a)},
                                    {"b", describe(g.b)},
                                    {"fast_accumulate", g.fast_accumulate},
                                    {"dequantized", std::string(layers.decoded_because(i, which))}};
    };
    json["linears"].push_back({{"name", linear.site.name},
                               {"out_features", linear.site.out_features},
                               {"in_features", linear.site.in_features},
                               {"scaled", linear.is_scaled()},
                               {"exempt_reason", linear.exempt_reason},
                               {"frozen", static_cast<bool>(layers.frozen[i])},
                               {"plan", linear.layer_plan.empty() ? plan.name : linear.layer_plan},
                               {"swiglu", swiglu_note(linear)},
                               {"fprop", gemm(linear.fprop, 0)},
                               {"dgrad", gemm(linear.dgrad, 1)},
                               {"wgrad", gemm(linear.wgrad, 2)}});
  }
  for (const RunStage& stage :
       session.stages.size() > 1 ? session.stages : std::vector<RunStage>()) {
    json["stages"].push_back(
        {{"begin", stage.begin}, {"end", stage.end}, {"plan", stage.plan.name}});
  }
  fmt::print("{}\n", json_text(json, 2));
}

void explain_settings(const ExplainOptions& options, const Settings& settings, int ranks) {
  // Stages of a run of epochs have numbers of steps that follow from the data.
  const bool needs_data = settings.training.max_epochs > 0 && !settings.precision.schedule.empty();
  Session session = open_session(settings, needs_data, ranks);
  if (!settings.precision.schedule.empty() && session.max_steps == 0) {
    throw KeyError("precision.schedule",
                   ": its stages need the length of the run: set training.max_steps");
  }
  log_notes(session);
  const PrecisionPlan& plan = session.engine.plan;
  if (!options.diff.empty()) {
    const PrecisionPlan other = plan_named(options.diff, "--diff");
    (options.json ? print_differences_json : print_differences)(plan, other);
  } else if (options.json) {
    print_json(session, explained_device(settings));
  } else {
    const ExplainedDevice device = explained_device(settings);
    for (size_t i = 0; i < session.stages.size(); ++i) {
      if (i > 0) {
        session.enter_stage(i);
        print_fitted("\nSteps {} to {} (precision.schedule):\n", session.stages[i].begin + 1,
                     session.stages[i].end);
      }
      print_text(session, device, options.every_layer);
    }
  }
}

void explain(const ExplainOptions& options) {
  if (options.plans) {
    const size_t columns = terminal_columns(stdout);
    fmt::print("{}", columns == kNoColumns ? plan_table_markdown() : plan_table_text(columns));
    return;
  }
  Settings settings = load(options.ranks.common, true);
  const int ranks = fill_job(options.ranks.world_size, options.ranks.ranks_per_node, settings);
  with_locations(settings, [&] { explain_settings(options, settings, ranks); });
}

}  // namespace

void add_explain(Arguments command, Action& action) {
  auto options = std::make_shared<ExplainOptions>();
  add_ranks(command, options->ranks);
  command.flag("--json", options->json, "As JSON");
  command.flag("--every-layer", options->every_layer,
               "One line per layer; without it equal neighbouring layers share a line");
  command.option("--diff", options->diff,
                 "Name of a plan: print only the roles in which it differs from the run's plan");
  command.flag("--plans", options->plans,
               "The table of plans, in a pipe or file the whole one in Markdown; needs no run");
  command.run_in_first(action, [options] {
    explain(*options);
    return 0;
  });
}

}  // namespace fp8train
