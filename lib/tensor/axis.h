#pragma once
// The axes along which the ranks of a run share its work.

#include <cstddef>
#include <cstdint>

namespace fp8train {

/// The axes, from the slowest to the fastest: the ranks of one tensor group are neighbours. Experts
/// are laid over the same ranks as data, context and tensor together, from the fastest on.
enum class Axis : uint8_t {
  pipeline,  ///< stages of layers
  data,      ///< different samples
  context,   ///< parts of a sequence
  tensor,    ///< parts of a layer
  expert,    ///< different experts
};

/// "tensor"
inline const char* name_of(Axis axis) {
  constexpr const char* kNames[] = {"pipeline", "data", "context", "tensor", "expert"};
  return kNames[static_cast<size_t>(axis)];
}

}  // namespace fp8train
