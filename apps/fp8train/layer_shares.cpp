#include "layer_shares.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/screen.h"
#include "base/text.h"
#include "model/linear_sites.h"

namespace fp8train {

namespace {

/// "mlp.up" and -1 of "layers.3.mlp.up"; "mlp.experts.*.up" and 7 of "layers.3.mlp.experts.7.up".
std::pair<std::string, int64_t> divided_name(const LinearSite& site) {
  constexpr std::string_view kExperts = "mlp.experts.";
  const std::string prefix = fmt::format("layers.{}.", site.block);
  std::string name = site.name.substr(site.name.starts_with(prefix) ? prefix.size() : 0);
  if (!name.starts_with(kExperts)) {
    return {name, -1};
  }
  const size_t end = name.find('.', kExperts.size());
  const int64_t expert = std::stoll(name.substr(kExperts.size(), end - kExperts.size()));
  return {name.replace(kExperts.size(), end - kExperts.size(), "*"), expert};
}

/// The remark behind the operands of a GEMM that does not multiply them as they are.
std::string_view form_of(const RunProducts& layers, size_t layer, size_t gemm) {
  const ops::GemmSupport& support = layers.support[layer][gemm];
  return support.native ? "" : support.dequantized ? " dequantized" : " impossible";
}

/// The three GEMMs of a linear layer and what is to be said of it.
std::string products_text(const RunProducts& layers, size_t i) {
  const LinearPlan& linear = layers.linears[i];
  const auto gemm = [&](const GemmPlan& g, size_t which) {
    return fmt::format("{} x {}{}{}", name_of(g.a.dtype), name_of(g.b.dtype),
                       g.fast_accumulate ? " fast" : "", form_of(layers, i, which));
  };
  std::string note = layer_plan_note(linear);
  const std::string swiglu = swiglu_note(linear);
  note += (note.empty() || swiglu.empty() ? "" : "; ") + swiglu;
  note = linear.exempt_reason.empty() ? note : "exempt: " + linear.exempt_reason;
  if (layers.frozen[i]) {
    note += note.empty() ? "frozen" : "; frozen";
  }
  return fmt::format("{} | {} | {}{}{}", gemm(linear.fprop, 0), gemm(linear.dgrad, 1),
                     layers.frozen[i] ? "none" : gemm(linear.wgrad, 2), note.empty() ? "" : "   ",
                     note);
}

/// Numbers that follow each other.
struct Numbers {
  int64_t first, last;
  std::string text() const {
    return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  }
  bool operator==(const Numbers&) const = default;
};

/// Transformer blocks that follow each other and whose linear layers are printed alike, or a layer
/// outside of them.
struct LayerGroup {
  struct Line {
    std::string name;  ///< within a block; has a * for the number of an expert
    std::string shape, products;
    Numbers experts = {-1, -1};  ///< that follow each other and are printed alike
    bool operator==(const Line&) const = default;
  };
  int64_t first, last;  ///< -1: outside of the blocks
  std::vector<Line> lines;

  /// Appends a line, or the expert of it to the line of the one before.
  void add(Line line, bool every_layer) {
    for (Line& known : lines) {
      Line next = known;
      next.experts.first = next.experts.last + 1;
      next.experts.last = line.experts.last;
      if (!every_layer && line.experts.first > 0 && next == line) {
        known.experts.last = line.experts.last;
        return;
      }
    }
    lines.push_back(std::move(line));
  }
};

std::vector<LayerGroup> groups_of(const RunProducts& layers, bool every_layer) {
  std::vector<LayerGroup> groups;
  const auto join_alike = [&] {
    const size_t count = groups.size();
    if (!every_layer && count > 1 && groups[count - 1].first >= 0 && groups[count - 2].first >= 0 &&
        groups[count - 1].lines == groups[count - 2].lines) {
      groups[count - 2].last = groups[count - 1].last;
      groups.pop_back();
    }
  };
  for (size_t i = 0; i < layers.linears.size(); ++i) {
    const LinearSite& site = layers.linears[i].site;
    if (groups.empty() || site.block < 0 || groups.back().last != site.block) {
      join_alike();
      groups.push_back({site.block, site.block, {}});
    }
    const auto [name, expert] = divided_name(site);
    groups.back().add({name,
                       fmt::format("[{}, {}]", site.out_features, site.in_features),
                       products_text(layers, i),
                       {expert, expert}},
                      every_layer);
  }
  join_alike();
  return groups;
}

}  // namespace

std::string layers_text(const RunProducts& layers, bool every_layer) {
  const size_t columns = terminal_columns(stdout);
  const bool is_wide = columns >= kColumns;
  std::vector<TableColumn> table = {{fmt::format("{:<{}}", "linear layer", is_wide ? 28 : 0)},
                                    {fmt::format("{:<{}}", "[out, in]", is_wide ? 14 : 0), 1},
                                    {"fprop | dgrad | wgrad"}};
  for (const LayerGroup& group : groups_of(layers, every_layer)) {
    const std::string prefix =
        group.first < 0 ? "" : fmt::format("layers.{}.", Numbers{group.first, group.last}.text());
    for (const auto& [name, shape, products, experts] : group.lines) {
      add_row(table, {without_controls(prefix + replaced(name, "*", experts.text())), shape,
                      without_controls(products)});
    }
  }
  return "\n" + table_text(std::move(table), columns);
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

std::string expert_shares_text(const Session& session) {
  const ParallelLayout& layout = session.engine.strategy.layout;
  if (layout.expert == 1) {
    return {};
  }
  const PrecisionPlan& plan = session.engine.plan;
  return fmt::format(
      "\n{} ranks have different experts of each layer (parallelism.expert), {} each.\n"
      "Rows, and their gradients, go to them as {} and come back as {}.\n",
      layout.expert, session.engine.model.moe.experts / layout.expert,
      describe(plan.expert_dispatch), name_of(plan.activation));
}

}  // namespace

std::string layer_shares_text(const Session& session) {
  const ParallelLayout& layout = session.engine.strategy.layout;
  std::string sequences = sequence_shares_text(session) + expert_shares_text(session);
  if (layout.tensor == 1) {
    return sequences;
  }
  std::vector<TableColumn> table = {
      {"linear layer"}, {"a rank has"}, {"rows of tokens cross as"}, {"sums cross as"}};
  for (const LinearPlan& linear :
       plan_linears(session.engine.plan, linear_sites(session.engine.model))) {
    if (linear.site.block > 0 || linear.site.split == Split::none) {
      continue;
    }
    const bool columns = linear.site.split == Split::columns;
    const LinearSite own = linear.site.of_rank(layout.tensor);
    const TensorFormat rows = gathered_format(linear);
    const bool fp32 = layout.tensor_parts > 0 || linear.activation != DType::bf16;
    add_row(table,
            {divided_name(linear.site).first,
             fmt::format("[{}, {}]", own.out_features, own.in_features),
             fmt::format("{}: {}, {} B", columns ? "x" : "dy", describe(rows), size_of(rows.dtype)),
             fmt::format("{}: {}", columns ? "dx" : "y", fp32 ? "fp32, 4 B" : "bf16, 2 B")});
  }
  return fmt::format("\n{} ranks share each layer (parallelism.tensor):\n{}", layout.tensor,
                     table_text(std::move(table), terminal_columns(stdout))) +
         sequences;
}

}  // namespace fp8train
