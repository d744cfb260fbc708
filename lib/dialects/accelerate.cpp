// The fp8_config of Accelerate.

#include <fmt/format.h>

#include "base/nearest.h"
#include "base/text.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;
using Meaning = ForeignKey::Meaning;

/// The keys of fp8_config are written here without their optional prefix fp8_ (Accelerate,
/// commands/config/config_args.py and utils/dataclasses.py).
constexpr ForeignKey kAccelerate[] = {
    {"backend", Meaning::special, "fp8.backend"},
    {"format", Meaning::special, "fp8.format"},
    {"margin", Meaning::ours, "fp8.margin"},
    {"interval", Meaning::ours, "fp8.interval"},
    {"amax_history_len", Meaning::ours, "fp8.amax_history_len"},
    {"amax_history_length", Meaning::special, "fp8.amax_history_len"},
    {"amax_compute_algo", Meaning::ours, "fp8.amax_compute_algo"},
    {"amax_compute_algorithm", Meaning::special, "fp8.amax_compute_algo"},
    {"override_linear_precision", Meaning::special, "fp8.override_linear_precision"},
    {"use_autocast_during_eval", Meaning::ours, "fp8.use_autocast_during_eval"},
    {"use_mxfp8_block_scaling", Meaning::special, "fp8.recipe"},
    {"opt_level", Meaning::ours, "fp8.opt_level"},
    {"optimization_level", Meaning::special, "fp8.opt_level"},
    {"enable_fsdp_float8_all_gather", Meaning::special},
    {"pad_inner_dim", Meaning::special}};

constexpr Words kBackends[] = {{"te", "te"},
                               {"transformerengine", "te"},
                               {"msamp", "msamp"},
                               {"ao", "torchao"},
                               {"torchao", "torchao"}};

}  // namespace

void Pass::accelerate(const Entry& entry) {
  if (entry.node.kind == Kind::null) {
    tell("fp8_config is empty");
  }
  section(entry, {kAccelerate, {}, false}, "fp8_",
          [this](const ForeignKey& key, const Entry& it) { accelerate_key(key, it); });
  // TERecipeKwargs of accelerate/utils/dataclasses.py: use_autocast_during_eval is False by
  // default. convert_model_to_fp8_ao of accelerate/utils/ao.py; the head is out in any case.
  defaults_ = {
      {"te", "fp8.use_autocast_during_eval", "false",
       "Accelerate's default: evaluation in high precision", entry.key},
      {"torchao", "fp8.first_linears", "1",
       "Accelerate leaves the first linear layer and the head in high precision", entry.key}};
}

void Pass::accelerate_key(const ForeignKey& key, const Entry& entry) {
  if (key.name == "backend") {
    const auto found = find_in(kBackends, simplified(entry.node.text));
    const bool is_known = found != std::end(kBackends);
    put(key.text, entry, is_known ? scalar(std::string(found->second), entry.node) : entry.node);
  } else if (key.name == "format") {
    if (simplified(entry.node.text) == "e5m2") {
      complain(entry,
               "E5M2 for all tensors does not train (TransformerEngine refuses it too); choose "
               "HYBRID or E4M3");
    } else {
      put(key.text, entry, entry.node);
    }
  } else if (key.name == "override_linear_precision") {
    override_linear_precision(key, entry);
  } else if (key.name == "use_mxfp8_block_scaling" || key.text.empty()) {
    tell_switch(key, entry);
  } else {
    put(key.text, entry, entry.node, " (Accelerate itself ignores this spelling)");
  }
}

/// Keys that are true or false and have no key of ours with the same meaning.
void Pass::tell_switch(const ForeignKey& key, const Entry& entry) {
  const std::optional<bool> value = flag(entry);
  if (!value) {
    return;
  }
  if (key.name == "enable_fsdp_float8_all_gather") {
    tell(fmt::format(
        "{}: with ZeRO, weights are gathered in FP8 wherever GEMMs read one set of codes",
        entry.spelled));
  } else if (key.name == "pad_inner_dim") {
    tell(
        fmt::format("{}: nothing is padded; layers with a dimension that is not a multiple of 16 "
                    "stay in high precision, and `fp8train explain` lists them",
                    entry.spelled));
  } else if (*value) {
    put(key.text, entry, scalar("mxfp8", entry.node));
  } else {
    tell(fmt::format("{}: false is so without it", entry.spelled));
  }
}

/// A list, "(a, b, c)" or "a,b,c" as one text, or false.
void Pass::override_linear_precision(const ForeignKey& key, const Entry& entry) {
  if (entry.node.kind != Kind::scalar) {
    put(key.text, entry, entry.node);
    return;
  }
  if (const auto value = flag_in(entry.node)) {
    if (*value) {
      complain(entry, "true does not say which GEMMs; write three, such as [false, false, true]");
    } else {
      tell(fmt::format("{}: false: no GEMM stays in high precision", entry.spelled));
    }
    return;
  }
  std::string text = entry.node.text;
  text.erase(std::remove_if(text.begin(), text.end(),
                            [](char c) { return c == '(' || c == ')' || c == ' '; }),
             text.end());
  std::vector<bool> values;
  for (const std::string& part : split(text, ',')) {
    if (const auto value = parse_bool(part)) {
      values.push_back(*value);
    }
  }
  if (values.size() != 3 || std::count(text.begin(), text.end(), ',') != 2) {
    complain(entry, fmt::format("expected three of true or false, got {}", describe(entry.node)));
    return;
  }
  put(key.text, entry, flags({values[0], values[1], values[2]}, entry.node));
}

}  // namespace fp8train::dialects
