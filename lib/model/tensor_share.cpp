#include "model/tensor_share.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "model/linear_sites.h"

namespace fp8train {
namespace {

constexpr std::string_view kOfExpert = ".experts.";

/// Throws unless the parts of `count` are equal.
void check_divides(const TensorShare& share, int64_t count, const char* what) {
  if (count % share.divisor() == 0) {
    return;
  }
  if (count % share.ranks != 0) {
    throw KeyError("parallelism.tensor",
                   fmt::format(" is {}, which does not divide {} {}; the nearest that does is {}",
                               share.ranks, what, count, nearest_divisor(count, share.ranks)));
  }
  int64_t works = share.divisor();
  while (count % works != 0) {
    works /= 2;
  }
  throw KeyError("parallelism.tensor_parts",
                 fmt::format(" is {}, which does not divide {} {}; the largest that does is {}",
                             share.divisor(), what, count, works));
}

void check_format(const LinearPlan& linear, const TensorFormat& format, int64_t extent) {
  if (!format.is_scaled() || format.block == per::tensor || format.block == per::row) {
    return;
  }
  const int64_t block = format.block.columns;
  if (extent % block != 0) {
    throw KeyError(
        "parallelism.tensor",
        fmt::format(": the part of {} that a rank has is {} long, and the plan's blocks {}; "
                    "take fewer ranks, or leave the layer to fp8.exempt",
                    linear.site.name, extent, block));
  }
}

}  // namespace

void check_tensor_share(const ModelConfig& config, const std::vector<LinearPlan>& linears,
                        const TensorShare& share) {
  if (share.divisor() == 1) {
    return;
  }
  check_divides(share, config.num_attention_heads, "model.num_attention_heads");
  check_divides(share, config.num_key_value_heads, "model.num_key_value_heads");
  if (config.moe.experts == 0 || !config.dense_layers.empty()) {
    check_divides(share, config.intermediate_size, "model.intermediate_size");
  }
  check_divides(share, config.moe.shared_width, "model.shared_expert_intermediate_size");
  for (const LinearPlan& linear : linears) {
    if (linear.site.split == Split::none && linear.site.name.find(kOfExpert) == std::string::npos) {
      throw KeyError("parallelism.tensor",
                     fmt::format(": {} is whole on each rank, as only experts may be; take 1",
                                 linear.site.name));
    }
    if (!linear.is_scaled() || linear.site.split == Split::none) {
      continue;
    }
    const bool by_columns = linear.site.split == Split::columns;
    const std::vector<int64_t> pieces =
        linear.site.is_head ? std::vector{padded_vocabulary(config, share.divisor())}
        : by_columns        ? linear.site.pieces()
                            : std::vector{linear.site.in_features};
    for (const int64_t piece : pieces) {
      for (const GemmPlan* gemm : linear.gemms()) {
        check_format(linear, gemm->a, piece / share.divisor());
        check_format(linear, gemm->b, piece / share.divisor());
      }
    }
  }
}

void check_equal_experts(const std::vector<LinearPlan>& linears) {
  std::map<std::string, const LinearPlan*> first;  // by the name without the number of the expert
  for (const LinearPlan& linear : linears) {
    const std::string& name = linear.site.name;
    const size_t begin = name.find(kOfExpert);
    if (begin == std::string::npos) {
      continue;
    }
    const std::string of_layer =
        name.substr(0, begin) + name.substr(name.find('.', begin + kOfExpert.size()));
    const LinearPlan& other = *first.emplace(of_layer, &linear).first->second;
    if (linear.fprop != other.fprop || linear.dgrad != other.dgrad || linear.wgrad != other.wgrad ||
        linear.exempt_reason.empty() != other.exempt_reason.empty()) {
      throw KeyError(
          "parallelism.expert",
          fmt::format(": {} and {} have different formats, and ranks with different experts "
                      "need the same; change the patterns of fp8.exempt or precision.layers",
                      other.site.name, name));
    }
  }
}

void check_tensor_rows(const TensorShare& share, int64_t rows) {
  if (rows % share.divisor() != 0) {
    throw KeyError("parallelism.tensor",
                   fmt::format(": {} ranks and {} parts of each cannot share the {} tokens of a "
                               "micro-batch equally; take data.seq_length times "
                               "training.micro_batch_size a multiple of "
                               "{}",
                               share.ranks, share.parts, rows, share.divisor()));
  }
}

}  // namespace fp8train
