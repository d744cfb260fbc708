#pragma once
// What `explain` prints of each linear layer, with equal transformer layers in one line:
// "layers.0-31.mlp.up". Pure text.

#include <string>
#include <vector>

namespace fp8train {

/// A linear layer by its name ("layers.3.mlp.up", "head") and what is printed after it.
struct LayerLine {
  std::string name;
  std::string text;

  bool operator==(const LayerLine&) const = default;
};

/// Transformer layers that follow each other, and whose lines differ in the number only, become one
/// group of lines. Other lines stay as they are, in their order.
std::vector<LayerLine> folded(const std::vector<LayerLine>& lines);

}  // namespace fp8train
