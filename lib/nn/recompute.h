#pragma once
// The results of a block that its backward pass computes again instead of reading them.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace fp8train {

enum class Recompute : uint8_t {
  none,
  attention,  ///< of its attention, from the norm to the input of the output projection
  mlp,        ///< of its feed-forward half, from the norm to the input of the down projection
  block,      ///< of both: only the input of the block is stored
};

inline constexpr std::pair<Recompute, std::string_view> kRecomputes[] = {
    {Recompute::none, "none"},
    {Recompute::attention, "attention"},
    {Recompute::mlp, "mlp"},
    {Recompute::block, "block"}};

/// Whether backward computes the results of `half`, attention or mlp, again.
constexpr bool recomputes(Recompute recompute, Recompute half) {
  return recompute == half || recompute == Recompute::block;
}

/// Returns the name of a choice in a configuration.
constexpr std::string_view name_of(Recompute recompute) {
  return kRecomputes[static_cast<size_t>(recompute)].second;
}

}  // namespace fp8train
