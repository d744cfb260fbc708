#pragma once
// The table of optimizers. Each file of an optimizer describes it by one OptimizerEntry;
// registry.cpp has a line for each. The configuration asks this table which keys apply.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace fp8train {

class Optimizer;
struct Parameter;
struct OptimizerSettings;
struct OptimizerSite;

/// Which of a plan's roles for moments the weight of a linear layer has a state for.
struct MomentRoles {
  bool moment1 = false, moment2 = false;
};

/// Describes an optimizer: how it is made, which keys it reads and which states it has.
struct OptimizerEntry {
  std::string_view name;  ///< optimizer.name
  std::unique_ptr<Optimizer> (*make)(const OptimizerSite& site);
  /// Keys that this optimizer reads and not all others do: "optimizer.betas", "precision.moment1".
  std::vector<std::string_view> keys;
  /// Whether the key means something to it; true for keys that no entry names.
  bool reads(std::string_view key) const;
  MomentRoles (*moments)(const OptimizerSettings& settings);
  std::string_view note;  ///< for `explain`, if parameters are updated in different ways
  /// Returns the operations of the update of a parameter if updates read whole matrices: ranks then
  /// share them by whole parameters only (ZeRO 1). Null: ranks share them by elements.
  double (*whole_cost)(const Parameter& parameter) = nullptr;
  /// Whether the size of gradients does not decide that of a step, so that fine-tuning has a
  /// default rate of its own.
  bool normalizes_gradients = true;
  /// Every rank makes the same products of matrices and must get the same bits: none may choose
  /// algorithms of its own (gemm_tuning).
  bool repeats_products = false;
};

/// Returns the table of optimizers.
const std::vector<OptimizerEntry>& optimizers();
/// Returns all keys that only some of them read.
const std::vector<std::string_view>& optimizer_keys();
/// Returns the entry of a table with this name, the value of `key`. Throws ConfigError that lists
/// all names if there is none.
template <class Entry>
const Entry& entry_named(const std::vector<Entry>& all, std::string_view name, const char* key) {
  const auto found = std::ranges::find(all, name, &Entry::name);
  if (found == all.end()) {
    throw ConfigError(std::string(key) + ": '" + std::string(name) + "' is not one of " +
                      joined(all, &Entry::name));
  }
  return *found;
}
/// Returns the optimizer with this name, as entry_named().
const OptimizerEntry& optimizer_named(std::string_view name);

/// Returns settings of an optimizer that stores nothing, for an engine that needs none.
OptimizerSettings stateless_optimizer();

/// Makes the optimizer and sets its states to zero. Throws ConfigError for an unknown name and when
/// the optimizer does not work on the formats or the layout of the store.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSite& site);

}  // namespace fp8train
