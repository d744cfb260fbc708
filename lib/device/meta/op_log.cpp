#include "device/meta/op_log.h"

#include <string_view>

namespace fp8train {

std::string operands_text(const Fp8Product& product) {
  constexpr std::string_view kBy = " x ";
  const std::string_view pair = name_of(product.scales);
  const size_t by = pair.find(kBy);
  std::string text;
  const auto add_operand = [&](DType type, std::string_view scales) {
    text += name_of(type);
    if (product.scales != ScalePair::tensor) {
      text += ' ';
      text += scales;
    }
  };
  add_operand(product.a, pair.substr(0, by));
  text += kBy;
  add_operand(product.b, by == std::string_view::npos ? pair : pair.substr(by + kBy.size()));
  return text;
}

}  // namespace fp8train
