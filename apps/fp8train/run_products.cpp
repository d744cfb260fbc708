#include "run_products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "base/text.h"
#include "model/linear_sites.h"
#include "nn/linear_product.h"
#include "numeric/code_family.h"
#include "precision/plan.h"

namespace fp8train {
namespace {

/// "FP8", "FP4" or "INT8"; the name of a type that is not a code.
std::string family_name(DType type) {
  std::string name = code_family(type);
  if (facts_of(type).has(use::code)) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  }
  return name;
}

/// The family of a scaled layer's codes.
std::string family_of(const LinearPlan& plan) {
  const TensorFormat& backward = plan.dgrad.a.is_scaled() ? plan.dgrad.a : plan.wgrad.a;
  return family_name(plan.fprop.a.is_scaled() ? plan.fprop.a.dtype : backward.dtype);
}

/// The layers whose codes are of one family.
struct Family {
  std::string name;
  size_t layers = 0;         ///< with a GEMM that multiplies codes
  size_t gemms = 0;          ///< of those layers, with codes
  size_t decoded_gemms = 0;  ///< of them, multiplied in 16 bits
  size_t decoded = 0;        ///< layers all of whose GEMMs with codes are multiplied in 16 bits
  std::string_view reason;   ///< for the first GEMM that is
};

void count(const RunProducts& products, size_t layer, Family& family) {
  const LinearPlan& linear = products.linears[layer];
  const auto gemms = linear.gemms();
  size_t of_codes = 0;
  size_t decoded = 0;
  for (size_t i = 0; i < gemms.size(); ++i) {
    if (!gemms[i]->a.is_scaled() && !gemms[i]->b.is_scaled()) {
      continue;
    }
    ++of_codes;
    if (!products.support[layer][i].native) {
      ++decoded;
      family.reason = family.reason.empty() ? products.support[layer][i].reason : family.reason;
    }
  }
  if (decoded == of_codes) {
    ++family.decoded;
    return;
  }
  ++family.layers;
  family.gemms += of_codes;
  family.decoded_gemms += decoded;
}

std::vector<Family> families_of(const RunProducts& products) {
  std::vector<Family> families;
  for (size_t i = 0; i < products.linears.size(); ++i) {
    if (products.linears[i].is_scaled()) {
      const std::string name = family_of(products.linears[i]);
      auto found = std::ranges::find(families, name, &Family::name);
      if (found == families.end()) {
        families.push_back({.name = name});
        found = families.end() - 1;
      }
      count(products, i, *found);
    }
  }
  return families;
}

/// The product that the device has in no form; null: there is none.
const ops::GemmSupport* missing_product(const RunProducts& products) {
  for (const auto& layer : products.support) {
    for (const ops::GemmSupport& one : layer) {
      if (!one.native && !one.dequantized) {
        return &one;
      }
    }
  }
  return nullptr;
}

/// The GEMMs of a family's layers that do not multiply codes.
std::string in_part(const Family& family, std::string_view plain, const std::string& device) {
  return family.decoded_gemms == 0
             ? ""
             : fmt::format(" (but {} of their {} GEMMs in {} on {}: {})", family.decoded_gemms,
                           family.gemms, plain, device, family.reason);
}

std::vector<std::string> names_of(const std::vector<Family>& families) {
  std::vector<std::string> names;
  std::ranges::transform(families, std::back_inserter(names), &Family::name);
  return names;
}

}  // namespace

bool RunProducts::has_scaled() const {
  return std::ranges::any_of(linears, &LinearPlan::is_scaled);
}

bool RunProducts::all_native() const {
  return std::ranges::all_of(support, [](const auto& layer) {
    return std::ranges::all_of(layer, &ops::GemmSupport::native);
  });
}

namespace {

/// Of a layer's part, where ranks share it.
std::array<ops::GemmSupport, 3> support_of_rank(LinearPlan linear, const EngineSettings& engine,
                                                const DeviceTraits& traits, int64_t ranks) {
  linear.site = linear.site.of_rank(ranks);
  return product_support(traits, linear, engine.rows_of_rank(), engine.plan.weight_gradient);
}

int64_t native_products(const std::vector<LinearPlan>& linears, const EngineSettings& engine,
                        const DeviceTraits& traits, int64_t ranks) {
  int64_t count = 0;
  for (const LinearPlan& linear : linears) {
    count += std::ranges::count_if(support_of_rank(linear, engine, traits, ranks),
                                   &ops::GemmSupport::native);
  }
  return count;
}

}  // namespace

RunProducts products_of(const EngineSettings& engine, const DeviceTraits& traits) {
  RunProducts products = {.linears = plan_linears(engine.plan, linear_sites(engine.model)),
                          .support = {},
                          .plain = engine.plan.activation,
                          .asked = {},
                          .advice = {},
                          .frozen = {}};
  if (const TensorFormat& x = engine.plan.fprop.a; x.is_scaled()) {
    products.asked = family_name(x.dtype);
  }
  const int64_t ranks = engine.strategy.layout.tensor;
  const int64_t all = native_products(products.linears, engine, traits, 1);
  int64_t suiting = ranks;
  while (suiting > 1 && (ranks % suiting != 0 ||
                         native_products(products.linears, engine, traits, suiting) < all)) {
    --suiting;
  }
  if (suiting < ranks) {
    products.advice = fmt::format(
        "; with parallelism.tensor: {} all parts have sizes that it multiplies", suiting);
  }
  for (const LinearPlan& linear : products.linears) {
    products.support.push_back(support_of_rank(linear, engine, traits, ranks));
    const bool is_tied = linear.site.is_head && engine.model.tie_word_embeddings;
    const std::string weight = (is_tied ? "embedding" : linear.site.name) + ".weight";
    products.frozen.push_back(
        engine.model.lora.is_on() ||
        std::ranges::any_of(engine.step.decoder.frozen, [&](const std::string& pattern) {
          return glob_match(pattern, weight);
        }));
  }
  return products;
}

std::string describe_products(const RunProducts& products, const std::string& device) {
  const size_t all = products.linears.size();
  const std::string_view plain = name_of(products.plain);
  if (const ops::GemmSupport* const missing = missing_product(products)) {
    return fmt::format("does not run on {}: {}{}", device, missing->reason, products.advice);
  }
  const std::vector<Family> families = families_of(products);
  if (families.empty()) {
    return products.asked.empty()
               ? fmt::format("{} linear layers in {}", all, plain)
               : fmt::format("NONE of {} linear layers runs in {}, all in {}; the first one: {}",
                             all, products.asked, plain, products.linears.front().exempt_reason);
  }
  std::string text;
  size_t others = all;
  for (const Family& family : families) {
    others -= family.layers + family.decoded;
    if (family.layers > 0) {
      text += text.empty()
                  ? fmt::format("{} of {} linear layers in {}", family.layers, all, family.name)
                  : fmt::format(", {} in {}", family.layers, family.name);
      text += in_part(family, plain, device);
    }
  }
  if (text.empty()) {
    text = fmt::format("NONE of {} linear layers multiplies in {} on {}", all,
                       alternatives(names_of(families)), device);
  }
  for (const Family& family : families) {
    if (family.decoded > 0) {
      text += fmt::format(", {} round to {} and multiply in {} ({})", family.decoded, family.name,
                          plain, family.reason);
    }
  }
  text += others == 0 ? "" : fmt::format(", the others in {}", plain);
  return text + products.advice;
}

PlansElsewhere plans_elsewhere(const DeviceTraits& traits) {
  PlansElsewhere found;
  for (const std::string& name : plan_names()) {
    const PrecisionPlan plan = plan_named(name);
    if (!has_scaled_gemms(plan)) {
      continue;
    }
    LinearPlan layer = {
        static_cast<const LayerGemms&>(plan)};  // extents that are not known count as aligned
    layer.activation = plan.activation;
    const RunProducts products = {
        .linears = {layer},
        .support = {product_support(traits, layer, 0, plan.weight_gradient)},
        .plain = plan.activation,
        .asked = {}};
    if (missing_product(products) != nullptr) {
      found.refused.push_back(name);
    } else if (families_of(products).front().layers == 0) {
      found.in_16_bits.push_back(name);
    }
  }
  return found;
}

}  // namespace fp8train
