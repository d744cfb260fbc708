#pragma once
// The formats in which each linear layer of a model really runs: the GEMM formats of the run's plan
// or of the plan that precision.layers chooses, or the activation format if the layer is exempt,
// with the reason. Pure data: the layers and `explain` read the same result.

#include <string>
#include <string_view>
#include <vector>

#include "precision/plan.h"

namespace fp8train {

/// The part of a linear layer that each rank of the tensor axis has.
enum class Split : uint8_t {
  none,     ///< all of it
  columns,  ///< columns of y: rows of the weight. All ranks read all of x
  rows,     ///< columns of x and of the weight. y is the sum of what the ranks compute
};

/// A linear layer of a model, before it exists. Plans, exemptions, counts and the layer itself
/// follow from it. model/linear_sites.h enumerates them.
struct LinearSite {
  std::string name;          ///< "layers.0.attention.qkv"
  int64_t in_features = 0;   ///< K
  int64_t out_features = 0;  ///< N
  int64_t block = -1;        ///< -1: outside the blocks
  bool is_head = false;
  bool of_attention = false;  ///< else, in a block, of its MLP or experts
  bool reads_swiglu = false;  ///< its input is the product of a SwiGLU
  bool has_bias = false;
  bool ends_branch = false;  ///< its output is added to the residual stream
  int64_t used_rows = 0;  ///< rows of the weight [N, K] that are used, the rest is padding; 0: all
  /// Rows of each matrix that is stacked in the weight; empty: none is for an optimizer of
  /// matrices.
  std::vector<int64_t> matrices;
  Split split = Split::none;
  double token_share = 1.0;  ///< of all tokens that the layer processes on average: k / E

  /// Returns the rows of y that are cut one by one, where ranks have columns of it.
  std::vector<int64_t> pieces() const {
    return matrices.empty() ? std::vector<int64_t>{out_features} : matrices;
  }
  /// Returns the layer as one of `ranks` has it.
  LinearSite of_rank(int64_t ranks) const;
  /// Returns the elements of the weight that the model uses.
  int64_t weights() const { return in_features * (used_rows > 0 ? used_rows : out_features); }
};

/// The formats of one linear layer: those of the run, or those of a pattern that matches it.
struct LinearPlan : LayerGemms {
  LinearSite site;
  std::string exempt_reason;      ///< empty: the plan's own formats
  DType activation = DType::f32;  ///< type of x, y and of the layer when it is not scaled
  bool evaluate_scaled = true;    ///< evaluation runs the scaled formats too
  SwigluInput swiglu = SwigluInput::as_planned;  ///< of a layer that reads such a product
  bool remade_input = false;      ///< x is not stored for backward: whoever made it makes it again
  bool has_plain_stages = false;  ///< in some steps of the run no GEMM is scaled
  /// The plan of its GEMMs and the pattern that chose it. Both are empty for the run's plan.
  std::string layer_plan, layer_pattern;
  const char* layer_key = "precision.layers";  ///< that has the pattern

  /// Whether the columns of x come multiplied by scales, and fprop's w divided by them.
  bool is_smoothed() const { return swiglu == SwigluInput::smoothed; }
};

/// Whether layers of the same shape make the same calls: whatever their plans are called.
bool make_same_calls(const LinearPlan& a, const LinearPlan& b);

/// Whether ranks exchange rows of a tensor as the codes of its one scale, which both of its GEMMs
/// read. `other`: the operand with which it is multiplied along columns.
bool crosses_as_codes(const TensorFormat& along_rows, const TensorFormat& along_columns,
                      const TensorFormat& other);

/// The format in which the rows of x (Split::columns) or of dy (Split::rows) cross between the
/// ranks of the tensor axis: the codes that both GEMMs read of a tensor with one scale, else the
/// type of activations.
TensorFormat gathered_format(const LinearPlan& linear);

/// Describes the meaning of `LinearPlan::swiglu` for the layer; empty if it has none.
std::string swiglu_note(const LinearPlan& linear);

/// Describes the plan of its GEMMs and the pattern that chose it; empty for a layer of the run's
/// plan.
std::string layer_plan_note(const LinearPlan& linear);

/// Returns one LinearPlan per site, in order. Exemptions also hold for layers with a plan of their
/// own. Throws ConfigError when a pattern matches no site, a plan chosen for layers reaches none of
/// them because all are exempt or later patterns match them, the setting of SwiGLU's product
/// reaches no layer or does not go together with a layer's plan, or an x that is made again in
/// backward (precision.recompute_swiglu) has one scale.
std::vector<LinearPlan> plan_linears(const PrecisionPlan& plan,
                                     const std::vector<LinearSite>& sites);

/// Shell-style match: * is any run of characters, ? is one.
bool glob_match(const std::string& pattern, const std::string& text);
/// Throws KeyError if a pattern of a key matches none of the names, with the nearest of them or
/// those of block 0 and outside of blocks: "training.frozen: 'emb' matches no parameter; ...".
void check_pattern(std::string_view key, const std::string& pattern, std::string_view noun,
                   std::vector<std::string> names);

}  // namespace fp8train
