#pragma once
// Which feed-forward layers there are: for models (model/model_config.h) and for the layer (mlp.h).

#include <cstdint>

namespace fp8train {

enum class MlpKind : uint8_t { swiglu, gelu };  // gelu: the tanh form, "gelu_new"

/// Whether the up projection has a gate next to each value.
constexpr bool is_gated(MlpKind kind) {
  switch (kind) {
    case MlpKind::swiglu:
      return true;
    case MlpKind::gelu:
      break;
  }
  return false;
}

}  // namespace fp8train
