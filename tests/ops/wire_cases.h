#pragma once
// The formats that packets may have, from the lists of the program.

#include <vector>

#include "ops/adamw_cases.h"
#include "ops/exchange/wire_formats.h"

namespace fp8train::test {

inline std::vector<TensorFormat> all_wires() {
  std::vector<TensorFormat> wires;
  for (const DType type : PlainWireTypes::kTypes) {
    wires.push_back(plain(type));
  }
  for (const DType type : WireCodes::kTypes) {
    for (const int group : ops::kWireGroups) {
      for (const ScaleType scales : {ScaleType::f32, ScaleType::pow2}) {
        wires.push_back(in_groups_of(group, by_group(type, scales)));
      }
    }
  }
  return wires;
}

}  // namespace fp8train::test
