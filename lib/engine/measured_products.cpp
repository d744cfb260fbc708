#include "engine/measured_products.h"

namespace fp8train {
namespace {

/// Whether both are FP8 with the same kind of scales and accumulation, or both are 16-bit.
bool same_kind(const Fp8Product& a, const Fp8Product& b) {
  const auto is_plain = [](DType type) { return facts_of(type).bits > 8; };
  if (is_plain(a.a) || is_plain(b.a)) {
    return facts_of(a.a).bits == facts_of(b.a).bits;
  }
  const auto in_blocks_of_128 = [](ScalePair scales) {
    return scales == ScalePair::block_1x128_1x128 || scales == ScalePair::block_1x128_128x128 ||
           scales == ScalePair::block_128x128_1x128;
  };
  return (a.scales == b.scales || (in_blocks_of_128(a.scales) && in_blocks_of_128(b.scales))) &&
         a.fast_accumulate == b.fast_accumulate;
}

bool same_operands(const OpProduct& a, const OpProduct& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.type.scales == b.type.scales &&
         a.type.a == b.type.a && a.type.b == b.type.b &&
         a.type.fast_accumulate == b.type.fast_accumulate;
}

double flops_of(const OpProduct& product) {
  return 2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
         static_cast<double>(product.k);
}

}  // namespace

void MeasuredProducts::add(const OpProduct& product, double flops_per_second) {
  entries_.push_back({product, flops_per_second});
}

std::optional<MeasuredRate> MeasuredProducts::rate(const OpProduct& product) const {
  const Entry* of_shape = nullptr;
  double flops = 0;
  double seconds = 0;
  for (const Entry& entry : entries_) {
    if (same_operands(entry.product, product)) {
      const bool same_result =
          entry.product.type.c == product.type.c && entry.product.adds == product.adds;
      if (same_result) {
        return MeasuredRate{entry.flops_per_second, RateSource::shape};
      }
      of_shape = &entry;
    }
    if (same_kind(entry.product.type, product.type)) {
      flops += flops_of(entry.product);
      seconds += flops_of(entry.product) / entry.flops_per_second;
    }
  }
  if (of_shape != nullptr) {
    return MeasuredRate{of_shape->flops_per_second, RateSource::shape};
  }
  return seconds > 0 ? std::optional(MeasuredRate{flops / seconds, RateSource::kind})
                     : std::nullopt;
}

}  // namespace fp8train
