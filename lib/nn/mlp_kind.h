#pragma once
// Which feed-forward layers there are: for models (model/model_config.h) and for the layer (mlp.h).

#include <cstdint>

namespace fp8train {

enum class MlpKind : uint8_t { swiglu, gelu };  // gelu: the tanh form, "gelu_new"

}  // namespace fp8train
