#include "layer_shares.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/screen.h"
#include "base/terminal.h"
#include "model/linear_sites.h"

namespace fp8train {

std::string name_in_block(const LinearSite& site) {
  const std::string prefix = fmt::format("layers.{}.", site.block);
  return site.name.substr(site.name.starts_with(prefix) ? prefix.size() : 0);
}

namespace {

std::string sequence_shares_text(const Session& session) {
  const ParallelLayout& layout = session.engine.strategy.layout;
  if (layout.context == 1) {
    return {};
  }
  const DType type = session.engine.plan.activation;
  const std::string values = fmt::format("cross as {}, {} B", name_of(type), size_of(type));
  return fmt::format(
      "\n{} ranks share each sequence (parallelism.context). In each block, forward and backward,\n"
      "{}\n",
      layout.context,
      layout.context_kind == ContextKind::heads
          ? fmt::format("q, k, v and the output of attention {}", values)
          : fmt::format("k and v {}; then their gradients as fp32, 4 B", values));
}

}  // namespace

std::string layer_shares_text(const Session& session) {
  const ParallelLayout& layout = session.engine.strategy.layout;
  const std::string sequences = sequence_shares_text(session);
  if (layout.tensor == 1) {
    return sequences;
  }
  std::vector<TableColumn> table = {
      {"linear layer"}, {"a rank has"}, {"rows of tokens cross as"}, {"sums cross as"}};
  for (const LinearPlan& linear :
       plan_linears(session.engine.plan, linear_sites(session.engine.model))) {
    if (linear.site.block > 0) {
      continue;
    }
    const bool columns = linear.site.split == Split::columns;
    const LinearSite own = linear.site.of_rank(layout.tensor);
    const TensorFormat rows = gathered_format(linear);
    const bool fp32 = layout.tensor_parts > 0 || linear.activation != DType::bf16;
    table[0].texts.push_back(name_in_block(linear.site));
    table[1].texts.push_back(fmt::format("[{}, {}]", own.out_features, own.in_features));
    table[2].texts.push_back(
        fmt::format("{}: {}, {} B", columns ? "x" : "dy", describe(rows), size_of(rows.dtype)));
    table[3].texts.push_back(
        fmt::format("{}: {}", columns ? "dx" : "y", fp32 ? "fp32, 4 B" : "bf16, 2 B"));
  }
  return fmt::format("\n{} ranks share each layer (parallelism.tensor):\n{}", layout.tensor,
                     table_text(std::move(table), terminal_columns(stdout))) +
         sequences;
}

}  // namespace fp8train
