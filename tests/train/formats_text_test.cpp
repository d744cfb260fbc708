// What differs between the formats of a checkpoint and those of a run, as a message lists it.

#include "train/checkpoint/formats_text.h"

#include <catch2/catch.hpp>

using namespace fp8train;
using Lines = std::vector<std::string>;

namespace {

const std::string kProducts = "e4m3 x e4m3; e5m2 x e4m3; e5m2 x e4m3; ";
const std::string kStored = "stored bf16; ";
const std::string kSlots = "layers.0.up.x layers.0.up.w ";

}  // namespace

TEST_CASE("equal formats have no changes, and each part that differs has a line") {
  CHECK(format_changes(kProducts + kStored + kSlots, kProducts + kStored + kSlots).empty());
  CHECK(format_changes(kProducts + kSlots, "e4m3 x e4m3; e4m3 x e4m3; e5m2 x e4m3; " + kSlots) ==
        Lines{"dgrad: was e5m2 x e4m3, is e4m3 x e4m3"});
  CHECK(format_changes(kProducts + kStored + kSlots, kProducts + kSlots) ==
        Lines{"weights, gradients and moments: was bf16, is fp32"});
  CHECK(format_changes(kProducts + kSlots,
                       kProducts + kStored + "stored fp16 tensor current; " + kSlots) ==
        Lines{"weights, gradients and moments: was fp32, is bf16, fp16 tensor current"});
  CHECK(format_changes(kProducts + "layers.0.up.x layers.0.up.w ",
                       kProducts + "layers.0.up.x layers.0.up.dy layers.1.up.x ") ==
        Lines{"scaled tensors: was layers.0.up.w, is layers.0.up.dy, layers.1.up.x"});
  // The same parts in another order
  CHECK(format_changes("stored bf16; " + kProducts + kSlots, kProducts + kStored + kSlots).size() ==
        1);
}

TEST_CASE("layers whose own plan differs are named once, and the first three of many") {
  const auto layers = [](int first, int last, const std::string& product) {
    std::string text = kProducts;
    for (int layer = first; layer <= last; ++layer) {
      const std::string name = " in layers." + std::to_string(layer) + ".up; ";
      for (int gemm = 0; gemm < 3; ++gemm) {
        text += product + name;
      }
    }
    return text + kSlots;
  };
  const std::string title = "layers whose own plan differs: ";
  // A layer that only the run has, one that only the checkpoint has, and one that both have
  CHECK(format_changes(layers(0, 0, "bf16 x bf16"), layers(0, 1, "bf16 x bf16")) ==
        Lines{title + "layers.1.up"});
  CHECK(format_changes(layers(0, 1, "bf16 x bf16"), layers(0, 0, "bf16 x bf16")) ==
        Lines{title + "layers.1.up"});
  CHECK(format_changes(layers(0, 0, "bf16 x bf16"), layers(0, 0, "e4m3 x e4m3")) ==
        Lines{title + "layers.0.up"});
  CHECK(format_changes(layers(0, 4, "bf16 x bf16"), layers(0, 4, "e4m3 x e4m3")) ==
        Lines{title + "layers.0.up, layers.1.up, layers.2.up and 2 more"});
}
