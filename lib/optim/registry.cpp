#include "optim/registry.h"

#include <string>

#include "base/key_error.h"
#include "optim/optimizer.h"

namespace fp8train {

OptimizerEntry adamw_entry();
OptimizerEntry sgd_entry();
OptimizerEntry muon_entry();

const std::vector<OptimizerEntry>& optimizers() {
  static const std::vector<OptimizerEntry> entries = {
      adamw_entry(),
      sgd_entry(),
      muon_entry(),
  };
  return entries;
}

const std::vector<std::string_view>& optimizer_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> all;
    for (const OptimizerEntry& entry : optimizers()) {
      for (const std::string_view key : entry.keys) {
        if (std::find(all.begin(), all.end(), key) == all.end()) {
          all.push_back(key);
        }
      }
    }
    return all;
  }();
  return keys;
}

bool OptimizerEntry::reads(std::string_view key) const {
  const auto names = [&](const std::vector<std::string_view>& some) {
    return std::find(some.begin(), some.end(), key) != some.end();
  };
  return names(keys) || !names(optimizer_keys());
}

const OptimizerEntry& optimizer_named(std::string_view name) {
  return entry_named(optimizers(), name, "optimizer.name");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSite& site) {
  const OptimizerEntry& entry = optimizer_named(site.settings.name);
  if (entry.whole_cost != nullptr && site.parameters->shards() != nullptr) {
    throw KeyError("optimizer.name", ": " + site.settings.name +
                                         " updates whole matrices, which cannot be cut into parts; "
                                         "set parallelism.zero_stage: 0 or 1, or take adamw");
  }
  return entry.make(site);
}

}  // namespace fp8train
