#include "engine/engine_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/key_error.h"
#include "base/nearest.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// `kv_heads`: of a rank.
void check_context(const EngineSettings& settings, int64_t kv_heads) {
  const ParallelLayout& layout = settings.strategy.layout;
  const int64_t length = settings.step.seq_length;
  const auto nearest_length = [&](int64_t multiple) {
    return std::max<int64_t>(1, (length + multiple / 2) / multiple) * multiple;
  };
  if (layout.context_kind == ContextKind::gather) {
    if (layout.context > 1 && length % (2 * layout.context) != 0) {
      throw KeyError(
          "parallelism.context",
          fmt::format(" is {}, and data.seq_length {} is not a multiple of "
                      "twice as much; the nearest length that works is {}{}",
                      layout.context, length, nearest_length(2 * layout.context),
                      length % 2 == 0 ? fmt::format(", the nearest size {}",
                                                    nearest_divisor(length / 2, layout.context))
                                      : ""));
    }
    return;
  }
  const int64_t common = std::gcd(length, kv_heads);
  if (common % layout.context != 0) {
    throw KeyError(
        "parallelism.context",
        fmt::format(" is {}, which does not divide data.seq_length {} and the {} of keys "
                    "that a rank has of each layer; the nearest size that does is {}{}{}",
                    layout.context, length, counted(kv_heads, "head"),
                    nearest_divisor(common, layout.context),
                    kv_heads % layout.context == 0
                        ? fmt::format(", the nearest length {}", nearest_length(layout.context))
                        : "",
                    length % (2 * layout.context) == 0
                        ? ", or take parallelism.context_kind: gather"
                        : ""));
  }
}

}  // namespace

ExpertShare expert_share(const EngineSettings& settings, const Mesh& mesh, bool repeats) {
  ExpertShare share = {mesh.index(Axis::expert), mesh.size(Axis::expert)};
  const int64_t experts = settings.model.moe.experts;
  const int64_t tensor = mesh.size(Axis::tensor);
  const int64_t batch = settings.step.micro_batch_size;
  if (share.ranks > 1 && repeats) {
    share.counts_experts = mesh.index(Group::expert_state) == 0;
    share.counts_others = mesh.index(Group::state) == 0;
  }
  if (experts > 0 && std::max<int64_t>(share.ranks, tensor) > 1 &&
      settings.step.decoder.moe.dropless) {
    throw KeyError(
        "moe.dropless",
        fmt::format(
            ": no bound holds for the rows that ranks with different experts get from "
            "others, as those of parallelism.expert and tensor are; take 1 for both, or "
            "moe.capacity_factor {:g}, with which none is dropped",
            static_cast<double>(experts) / static_cast<double>(settings.model.moe.per_token)));
  }
  if (experts > 0 && share.ranks % tensor != 0) {
    throw KeyError("parallelism.tensor",
                   fmt::format(" is {}: ranks that share layers have different experts; take "
                               "parallelism.expert {} or a multiple of it, and not {}",
                               tensor, tensor, share.ranks));
  }
  if (experts > 0 && settings.step.decoder.moe.balance_loss != 0 && batch % tensor != 0 &&
      tensor % batch != 0) {
    throw KeyError("training.micro_batch_size",
                   fmt::format(" is {}; with moe.balance_loss, which is of whole sequences, it "
                               "must divide parallelism.tensor {} or be a multiple of it",
                               batch, tensor));
  }
  if (share.ranks > 1 && experts == 0) {
    throw KeyError("parallelism.expert", ": the model has no experts; remove it");
  }
  if (experts % share.ranks != 0) {
    throw KeyError(
        "parallelism.expert",
        fmt::format(" is {}, which does not divide model.num_experts {}; the nearest size "
                    "that does is {}",
                    share.ranks, experts, nearest_divisor(experts, share.ranks)));
  }
  return share;
}

void check_documents(const EngineSettings& settings, const DeviceTraits& traits) {
  if (settings.masks_documents && traits.fp8_gemm_by_library &&
      settings.plan.attention.gemms() != Fp8Attention::none) {
    throw Keyed<DeviceError>(
        "fp8.attention",
        ": on a GPU it has no masks of documents; take another data.packing, or "
        "remove "
        "the key");
  }
}

TensorShare tensor_share(const EngineSettings& settings, const Mesh& mesh) {
  const TensorShare share = {mesh.index(Axis::tensor), mesh.size(Axis::tensor),
                             settings.strategy.layout.parts_of_rank()};
  check_context(settings, settings.model.num_key_value_heads / share.ranks);
  check_tensor_rows(share, settings.rows_of_rank());
  return share;
}

}  // namespace fp8train
