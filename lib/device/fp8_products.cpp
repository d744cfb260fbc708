#include "device/fp8_products.h"

#include <iterator>

namespace fp8train {

const char* name_of(ScalePair pair) {
  constexpr const char* kNames[] = {"tensor",          "row",  "1x128 x 1x128", "1x128 x 128x128",
                                    "128x128 x 1x128", "1x32", "1x16"};
  static_assert(std::size(kNames) == kScalePairs);
  return kNames[static_cast<size_t>(pair)];
}

}  // namespace fp8train
