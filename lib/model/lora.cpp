#include "model/lora.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/key_error.h"
#include "model/families/family.h"
#include "model/hf_names.h"
#include "model/linear_sites.h"

namespace fp8train {
namespace {

constexpr std::string_view kEnds[] = {".lora_A", ".lora_B"};
constexpr const char* kAll = "all-linear";  // in words of peft

std::string last_part(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

/// As in peft the end of a name is enough, whose parts it has whole.
bool matches(const std::string& target, const std::string& name) {
  return glob_match(target, name) || glob_match("*." + target, name);
}

std::vector<std::string> targets_of(const ModelConfig& config) {
  return config.lora.targets.empty() ? config.family->lora_targets() : config.lora.targets;
}

bool is_target(const ModelConfig& config, const LinearSite& site, const std::string& module) {
  return std::ranges::any_of(targets_of(config), [&](const std::string& target) {
    return target == kAll || matches(target, module) || matches(target, site.name);
  });
}

/// All modules that a layer consists of.
std::vector<LoraPiece> modules_of(const ModelConfig& config, const LinearSite& site) {
  std::vector<LoraPiece> modules;
  if (site.block < 0) {
    return modules;
  }
  for (const HfPiece& piece : hf_pieces(config, site.name + ".weight")) {
    const std::string module = piece.name.substr(0, piece.name.rfind('.'));
    modules.push_back(
        {site.name + "." + last_part(module), module, piece.begin, piece.rows, site.in_features});
  }
  return modules;
}

void check_targets(const ModelConfig& config) {
  std::vector<std::string> names;
  for_each_linear(config, [&](const LinearSite& site) {
    for (const LoraPiece& module : modules_of(config, site)) {
      names.push_back(module.module);
      names.push_back(site.name);
    }
  });
  for (const std::string& target : targets_of(config)) {
    if (target != kAll && std::ranges::none_of(names, [&](const std::string& name) {
          return matches(target, name);
        })) {
      std::vector<std::string> ends;
      std::ranges::transform(names, std::back_inserter(ends), last_part);
      std::ranges::sort(ends);
      ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
      throw KeyError("model.lora.targets",
                     fmt::format(": '{}' matches no linear layer of a block; expected {}, parts of "
                                 "names such as {}, or {}",
                                 target, fmt::join(ends, ", "), names.front(), kAll));
    }
  }
}

}  // namespace

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kEnds[0]) || parameter.ends_with(kEnds[1]);
}

std::vector<LoraPiece> lora_pieces(const ModelConfig& config, const LinearSite& site) {
  if (!config.lora.is_on()) {
    return {};
  }
  std::vector<LoraPiece> pieces = modules_of(config, site);
  std::erase_if(pieces,
                [&](const LoraPiece& piece) { return !is_target(config, site, piece.module); });
  for (LoraPiece& piece : pieces) {
    piece.token_share = site.token_share;
  }
  return pieces;
}

std::vector<LoraPiece> lora_pieces(const ModelConfig& config) {
  std::vector<LoraPiece> all;
  if (!config.lora.is_on()) {
    return all;
  }
  check_targets(config);
  for_each_linear(config, [&](const LinearSite& site) {
    std::ranges::move(lora_pieces(config, site), std::back_inserter(all));
  });
  return all;
}

HfPiece lora_tensor(const ModelConfig& config, const std::string& parameter) {
  const size_t end = parameter.rfind('.');
  const size_t part = parameter.rfind('.', end - 1);
  const std::string module = parameter.substr(part + 1, end - part - 1);
  for (const HfPiece& piece : hf_pieces(config, parameter.substr(0, part) + ".weight")) {
    const std::string name = piece.name.substr(0, piece.name.rfind('.'));
    if (last_part(name) == module) {
      const bool is_a = parameter.ends_with(kEnds[0]);
      return {fmt::format("base_model.model.{}{}.weight", name, parameter.substr(end)), 0,
              is_a ? config.lora.rank : piece.rows};
    }
  }
  throw InternalError("an adapter belongs to a module of its layer: " + parameter);
}

std::vector<std::string> peft_targets(const ModelConfig& config) {
  std::map<std::string, size_t> modules;
  for_each_linear(config, [&](const LinearSite& site) {
    for (const LoraPiece& module : modules_of(config, site)) {
      ++modules[last_part(module.module)];
    }
  });
  std::map<std::string, std::vector<std::string>> adapted;
  for (const LoraPiece& piece : lora_pieces(config)) {
    adapted[last_part(piece.module)].push_back(piece.module);
  }
  std::vector<std::string> targets;
  for (const auto& [end, names] : adapted) {
    if (names.size() == modules[end]) {
      targets.push_back(end);
    } else {
      targets.insert(targets.end(), names.begin(), names.end());
    }
  }
  return targets;
}

}  // namespace fp8train
