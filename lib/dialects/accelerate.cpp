// The fp8_config of Accelerate.

#include <fmt/format.h>

#include "base/nearest.h"
#include "config/field.h"
#include "config/scalar.h"
#include "dialects/pass.h"

namespace fp8train::dialects {
namespace {

using Kind = YamlNode::Kind;

/// Of Accelerate's fp8_config, without the optional prefix fp8_ (Accelerate,
/// commands/config/config_args.py and utils/dataclasses.py).
constexpr Alias kAccelerate[] = {{"backend", "fp8.backend"},
                                 {"format", "fp8.format"},
                                 {"margin", "fp8.margin"},
                                 {"interval", "fp8.interval"},
                                 {"amax_history_len", "fp8.amax_history_len"},
                                 {"amax_history_length", "fp8.amax_history_len", true},
                                 {"amax_compute_algo", "fp8.amax_compute_algo"},
                                 {"amax_compute_algorithm", "fp8.amax_compute_algo", true},
                                 {"override_linear_precision", "fp8.override_linear_precision"},
                                 {"use_autocast_during_eval", "fp8.use_autocast_during_eval"},
                                 {"use_mxfp8_block_scaling", "fp8.recipe"},
                                 {"opt_level", "fp8.opt_level"},
                                 {"optimization_level", "fp8.opt_level", true},
                                 {"enable_fsdp_float8_all_gather", ""},
                                 {"pad_inner_dim", ""}};

constexpr Words kBackends[] = {{"te", "te"},
                               {"transformerengine", "te"},
                               {"msamp", "msamp"},
                               {"ao", "torchao"},
                               {"torchao", "torchao"}};

bool is_backend(const YamlNode& node, std::string_view ours) {
  const auto found = find_in(kBackends, simplified(node.text));
  return found != std::end(kBackends) && found->second == ours;
}

}  // namespace

void Pass::accelerate(const Entry& section) {
  changed_ = true;
  if (section.node.kind != Kind::map) {
    if (section.node.kind == Kind::null) {
      tell("fp8_config is empty");
    } else {
      complain(section, fmt::format("expected a section of keys, got {}", describe(section.node)));
    }
    return;
  }
  bool is_te = false;
  bool says_evaluation = false;
  for (size_t i = 0; i < section.node.items.size(); ++i) {
    const YamlKey& key = section.node.keys[i];
    const std::string name = key.text.starts_with("fp8_") ? key.text.substr(4) : key.text;
    const Entry entry = {name, "fp8_config." + key.text, key, section.node.items[i]};
    const Alias* alias = find_alias(kAccelerate, name);
    if (alias == nullptr) {
      unknown(entry, names_of(kAccelerate));
    } else if (entry.node.kind == Kind::null) {
      tell(fmt::format("{} is not set", entry.spelled));
    } else {
      is_te = is_te || (alias->name == "backend" && is_backend(entry.node, "te"));
      says_evaluation = says_evaluation || alias->name == "use_autocast_during_eval";
      accelerate_key(*alias, entry);
    }
  }
  if (is_te && !says_evaluation) {
    // TERecipeKwargs of accelerate/utils/dataclasses.py: use_autocast_during_eval is False by
    // default.
    put("fp8.use_autocast_during_eval",
        {"use_autocast_during_eval", "fp8_config without use_autocast_during_eval", section.place,
         scalar("false", section.node)},
        scalar("false", section.node), " (Accelerate's default: evaluation in high precision)");
  }
}

void Pass::accelerate_key(const Alias& alias, const Entry& entry) {
  if (alias.name == "backend") {
    const auto found = find_in(kBackends, simplified(entry.node.text));
    put(alias.key, entry,
        found == std::end(kBackends) ? entry.node : scalar(std::string(found->second), entry.node));
    if (found != std::end(kBackends) && found->second == "torchao") {
      tell(entry.spelled +
           ": Accelerate keeps the first linear layer and the head out of this backend's FP8; here "
           "the head stays out, and with fp8.first_linears: 1 the first one too");
    }
  } else if (alias.name == "format" && simplified(entry.node.text) == "e5m2") {
    complain(entry,
             "E5M2 for all tensors does not train (TransformerEngine refuses it too); choose "
             "HYBRID or E4M3");
  } else if (alias.name == "override_linear_precision") {
    override_linear_precision(alias, entry);
  } else if (alias.name == "use_mxfp8_block_scaling" || alias.key.empty()) {
    tell_switch(alias, entry);
  } else {
    put(alias.key, entry, entry.node,
        alias.ignored_by_source ? " (Accelerate itself ignores this spelling)" : "");
  }
}

/// Keys that are true or false and have no key of ours with the same meaning.
void Pass::tell_switch(const Alias& alias, const Entry& entry) {
  const std::optional<bool> value = flag(entry);
  if (!value) {
    return;
  }
  if (alias.name == "enable_fsdp_float8_all_gather") {
    tell(fmt::format(
        "{}: with ZeRO, weights are gathered in FP8 wherever GEMMs read one set of codes",
        entry.spelled));
  } else if (alias.name == "pad_inner_dim") {
    tell(
        fmt::format("{}: nothing is padded; layers with a dimension that is not a multiple of 16 "
                    "stay in high precision, and `fp8train explain` lists them",
                    entry.spelled));
  } else if (*value) {
    put(alias.key, entry, scalar("mxfp8", entry.node));
  } else {
    tell(fmt::format("{}: false is so without it", entry.spelled));
  }
}

/// A list, "(a, b, c)" or "a,b,c" as one text, or false.
void Pass::override_linear_precision(const Alias& alias, const Entry& entry) {
  if (entry.node.kind != Kind::scalar) {
    put(alias.key, entry, entry.node);
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
  std::vector<bool> values;
  std::string rest = entry.node.text;
  rest.erase(std::remove_if(rest.begin(), rest.end(),
                            [](char c) { return c == '(' || c == ')' || c == ' '; }),
             rest.end());
  for (size_t begin = 0; begin <= rest.size();) {
    const size_t end = std::min(rest.find(',', begin), rest.size());
    if (const auto value = parse_bool(rest.substr(begin, end - begin))) {
      values.push_back(*value);
    } else {
      values.clear();
      break;
    }
    begin = end + 1;
  }
  if (values.size() != 3) {
    complain(entry, fmt::format("expected three of true or false, got {}", describe(entry.node)));
    return;
  }
  put(alias.key, entry, flags({values[0], values[1], values[2]}, entry.node));
}

}  // namespace fp8train::dialects
