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
      for (const ScaleTypeFacts& scales : kScaleTypeFacts) {
        if (scales.packet_bytes > 0) {
          wires.push_back(in_groups_of(group, by_group(type, scales.type)));
        }
      }
    }
  }
  return wires;
}

}  // namespace fp8train::test
