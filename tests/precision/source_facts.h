#pragma once
// What a plan and its source say of the same things, from
// tests/golden/precision/plan_sources.json (made by make_plan_sources.py from the sources' own
// code). A difference is an error unless it is listed with its reason, and so is a listed
// difference that no longer exists.

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "precision/plan.h"

namespace fp8train::test::sources {

using nlohmann::json;

inline const json& dump() {
  static const json kDump = [] {
    std::ifstream file(FP8TRAIN_GOLDEN_DIR "/precision/plan_sources.json");
    return json::parse(file);
  }();
  return kDump;
}

/// What the plan and its source say of one thing.
struct Fact {
  std::string ours, source;
};
using Facts = std::map<std::string, Fact>;
/// Facts that differ, and why.
using Deviations = std::map<std::string, std::string>;

inline std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

/// A format in the words that a source has for it; what no source says (the unit of an update, ...)
/// stays out.
inline std::string words_of(const TensorFormat& format) {
  std::string text(name_of(format.dtype));
  if (format.rounding == Rounding::stochastic) {
    text += " stochastic";
  }
  if (!format.is_scaled()) {
    return text;
  }
  text += format.block.is_group() ? " group" + std::to_string(format.block.columns)
                                  : " " + name_of(format.block);
  text += format.expanded ? " expanded" : "";
  if (format.policy == ScalePolicy::delayed) {
    text += " window " + std::to_string(format.delayed.history_length) +
            (format.delayed.algorithm == AmaxAlgorithm::max ? " max" : " most_recent") +
            " margin " + std::to_string(format.delayed.margin) +
            (format.delayed.current_at_first ? " current at first" : "");
  } else {
    text += format.policy == ScalePolicy::current ? " current" : " other";
  }
  text += format.scale_type == ScaleType::pow2   ? " pow2"
          : format.scale_type == ScaleType::e8m0 ? " e8m0"
                                                 : " f32";
  return text;
}

struct SixFormats {
  std::string x, w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x;
};

inline void add_gemms(const PrecisionPlan& plan, const SixFormats& source, Facts& facts) {
  facts["fprop x"] = {words_of(plan.fprop.a), source.x};
  facts["fprop w"] = {words_of(plan.fprop.b), source.w};
  facts["dgrad dy"] = {words_of(plan.dgrad.a), source.dgrad_dy};
  facts["dgrad w"] = {words_of(plan.dgrad.b), source.dgrad_w};
  facts["wgrad dy"] = {words_of(plan.wgrad.a), source.wgrad_dy};
  facts["wgrad x"] = {words_of(plan.wgrad.b), source.wgrad_x};
}

inline void add_accumulation(const PrecisionPlan& plan, bool fprop, bool dgrad, bool wgrad,
                             Facts& facts) {
  facts["fprop fast"] = {yes_or_no(plan.fprop.fast_accumulate), yes_or_no(fprop)};
  facts["dgrad fast"] = {yes_or_no(plan.dgrad.fast_accumulate), yes_or_no(dgrad)};
  facts["wgrad fast"] = {yes_or_no(plan.wgrad.fast_accumulate), yes_or_no(wgrad)};
}

/// Settings of the source with one meaning here, which its defaults must have; `read` are those
/// that facts are made from. None may be left.
inline void require_rest(const json& fields, const std::set<std::string>& read,
                         const json& required) {
  for (const auto& [name, value] : fields.items()) {
    INFO(name);
    if (!read.contains(name)) {
      REQUIRE(required.contains(name));
      CHECK(required.at(name) == value);
    }
  }
}

inline void compare(const Facts& facts, const Deviations& known) {
  for (const auto& [name, fact] : facts) {
    INFO(name << ": ours '" << fact.ours << "', the source's '" << fact.source << "'");
    const bool listed = known.contains(name);
    if (listed) {
      INFO("a listed deviation that no longer exists: remove it from the list");
      CHECK(fact.ours != fact.source);
    } else {
      CHECK(fact.ours == fact.source);
    }
  }
  for (const auto& [name, reason] : known) {
    INFO(name);
    CHECK(facts.contains(name));
    CHECK_FALSE(reason.empty());
  }
}

// TransformerEngine

inline std::string te_dtype(const json& recipe, const char* pass) {
  const json& format =
      dump().at("transformer_engine").at("formats").at(recipe.at("fp8_format").get<std::string>());
  const std::map<int, std::string> by_max = {{448, "e4m3"}, {57344, "e5m2"}};
  return by_max.at(format.at(pass).get<int>());
}

/// All six with one scaling.
inline void add_te_gemms(const PrecisionPlan& plan, const json& recipe, const std::string& scaling,
                         Facts& facts) {
  const std::string forward = te_dtype(recipe, "max_fwd") + scaling;
  const std::string backward = te_dtype(recipe, "max_bwd") + scaling;
  add_gemms(plan, {forward, forward, backward, forward, backward, forward}, facts);
}

inline void add_module_accumulation(const PrecisionPlan& plan, Facts& facts) {
  const json& split = dump().at("transformer_engine").at("split_accumulator_of_modules");
  add_accumulation(plan, !split.at("_2X_ACC_FPROP"), !split.at("_2X_ACC_DGRAD"),
                   !split.at("_2X_ACC_WGRAD"), facts);
}

inline Facts te_delayed_facts(const PrecisionPlan& plan, const json& recipe) {
  Facts facts;
  add_te_gemms(plan, recipe,
               " tensor window " + std::to_string(recipe.at("amax_history_len").get<int>()) + " " +
                   recipe.at("amax_compute_algo").get<std::string>() + " margin " +
                   std::to_string(recipe.at("margin").get<int>()) + " f32",
               facts);
  add_module_accumulation(plan, facts);
  return facts;
}

}  // namespace fp8train::test::sources
