#pragma once
// y = x W^T + b with explicit backward, each of its three GEMMs in the format that the plan's roles
// say. The layer quantizes x once in forward and dy once in backward, reads the weight's GEMM
// operands that were made once per optimizer step, and stores for backward the codes of x that
// wgrad reads, or x itself if wgrad reads that. An operation that makes x or dy can also cast it:
// the layer gives it the destinations (allocate_input, allocate_gradient) and reads the codes from
// there.
//
// With SwigluInput::smoothed the input is s x, where s is a scale for each column of x
// (ops/pointwise/smoothing.h): fprop multiplies by w / s, which depends on the micro-batch and is
// cast from the weight's value in every forward pass, next to the operands that are made once per
// step; dgrad reads those; the columns of wgrad's product are divided by s.
//
// Where the ranks of the tensor axis share the layer (LinearSite::split; Shoeybi et al., arXiv
// 1909.08053; Korthikanti et al., arXiv 2205.05198), rows of tokens are divided among them outside
// of it: M / ranks rows come and go. With Split::columns a rank gathers the rows of x, computes its
// columns of y for all M, and gets its rows of the sum of all dx. With Split::rows it reads its
// columns of x for all M rows, and gets its rows of the sum of all y; it gathers the rows of dy.
// Codes and scales of what is gathered are those of one rank (QuantizedInput::gathers_codes).
//
// An adapter (model/lora.h) is two more layers, A and B, which train while the weight is frozen:
// y += scale b(a(x)) in some columns of y. It reads x as it is, not its codes. With Split::columns
// A multiplies this rank's rows of x by all of A, and B is cut as the weight is; with Split::rows
// A is cut, and B multiplies this rank's rows of y.

#include <utility>
#include <vector>

#include "nn/context.h"
#include "nn/linear_weight.h"
#include "nn/parameter.h"
#include "nn/quantized_input.h"
#include "precision/linear_plan.h"
#include "precision/scaling_state.h"

namespace fp8train {

/// A linear layer y = x w^T (+ bias) and its two gradients, in the formats of its plan.
class Linear {
 public:
  /// The tensors that forward stores for backward.
  struct Saved {
    ops::GemmOperand x;           ///< as wgrad reads it, or this rank's rows as they cross
    ConstView smoothing;          ///< x was multiplied by these; empty: by nothing
    ops::GemmOperand dy;          ///< as wgrad reads it, once backward() has run
    std::vector<Saved> adapters;  ///< of A and B of the first, A and B of the next
  };

  /// Registers its scaling slots; `weight` [N, K] and `bias` [N] (may be null) belong to the store
  /// and may be shared with others.
  Linear(const LinearPlan& plan, Parameter* weight, Parameter* bias, ScalingState& scaling);

  /// Adds an adapter of the columns of y from `first` on, which are as many as b has.
  void add_adapter(Linear a, Linear b, int64_t first, float scale);
  bool has_adapters() const { return !adapters_.empty(); }
  /// Calls visit(Linear&) for the layer and the layers of its adapters.
  template <typename Visit>
  void for_each_layer(const Visit& visit) {
    visit(*this);
    for (Linear& adapter : adapters_) {
      visit(adapter);
    }
  }

  /// Allocates memory for the operation that makes x for forward, or dy for backward
  /// (QuantizedInput::allocate). Both stay valid as long as the caller's scopes of the two arenas.
  /// An x that backward reads itself, and not its codes, is in context.saved.
  InputTensor allocate_input(const StepContext& context, int64_t rows) const;
  InputTensor allocate_gradient(const StepContext& context, int64_t rows) const;

  /// Whether backward reads an x that is made again (LinearPlan::remade_input).
  bool remakes_input() const { return plan_.remade_input && trains_weight(); }
  /// Allocates, in context.scratch, an x that is made again in the backward pass
  /// (LinearPlan::remade_input).
  InputTensor allocate_remade(const StepContext& context, int64_t rows) const;
  /// Makes the operands that backward() reads of such an x, once it has been written, in
  /// context.scratch.
  Saved save_remade(const StepContext& context, const InputTensor& x) const;

  /// x: [M, K] in the activation type, y: [M, N] (of which ranks have rows or columns as above);
  /// the weight's operands are up to date (LinearWeight::refresh). A y without memory is not made:
  /// the pass prepares `saved` alone. Throws InternalError if an input that the plan smooths comes
  /// without its scales.
  void forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const;

  /// dy: [M, N], dx: [M, K]. Adds to the gradients of weight and bias, or overwrites them
  /// (StepContext::overwrites_gradients); dx (when not empty) is overwritten. With
  /// StepContext::held the gradient of the weight is left to add_weight_gradient().
  void backward(const StepContext& context, const InputTensor& dy, View dx, Saved& saved) const;
  /// Reads what backward() has left in StepContext::held, with the scales of that time.
  void add_weight_gradient(const StepContext& context, const Saved& saved) const;
  /// Returns where an x belongs that the caller allocates: wgrad and adapters may read it as it is.
  Arena& memory_of_plain_input(const StepContext& context) const {
    if (Arena* const plain = memory_of_plain_x(context); plain != nullptr) {
      return *plain;
    }
    Arena* const memory = memory_of_input(context).along_columns;
    const bool is_read = memory != nullptr && !x_.reads_codes(context, Along::columns);
    return is_read ? *memory : *context.scratch;
  }
  /// Whether wgrad reads it after the caller's backward pass: then it is in StepContext::held.
  bool holds_plain_input(const StepContext& context) const {
    return context.held != nullptr && &memory_of_plain_input(context) == context.held;
  }

  const LinearPlan& plan() const { return plan_; }
  /// The weight, to be allocated before the first pass and refreshed after each update.
  LinearWeight& weight() { return weight_; }
  const LinearWeight& weight() const { return weight_; }

 private:
  /// Whether this rank has rows of a tensor that it needs as a whole: x, or dy. The head has all of
  /// its input, and sums the gradient itself.
  bool gathers(const StepContext& context, Split split) const {
    return context.rows_of_ranks(1) > 1 && plan_.site.split == split && !plan_.site.is_head;
  }
  InputTensor allocate_own_rows(const StepContext& context, const Shape& shape,
                                QuantizedInput::Memory memory) const;
  /// This rank's rows as they cross: codes, or as they are.
  static ops::GemmOperand own_rows(const StepContext& context, const QuantizedInput& input,
                                   const InputTensor& x, Arena* memory);
  QuantizedInput::Operands operands_of_dy(const StepContext& context, const InputTensor& dy) const;
  void add_bias_gradient(const StepContext& context, ConstView dy) const;
  bool trains_weight() const { return weight_.parameter().trained; }
  QuantizedInput::Memory memory_of_input(const StepContext& context) const;
  /// Of operands that a backward pass makes; null: wgrad does not run.
  Arena* memory_of_wgrad(const StepContext& context) const {
    return trains_weight() ? context.memory_of_dy() : nullptr;
  }
  /// Of dy; one that is not cast is copied where it is held.
  QuantizedInput::Memory memory_of_gradient(const StepContext& context) const {
    return {context.scratch, !trains_weight()                           ? nullptr
                             : dy_.reads_codes(context, Along::columns) ? context.memory_of_dy()
                                                                        : context.scratch};
  }
  void hold(const StepContext& context, Saved& saved) const;
  /// Of an x and a dy that adapters read.
  Arena* memory_of_plain_x(const StepContext& context) const {
    return !has_adapters() ? nullptr : context.training ? context.memory_of_x() : context.scratch;
  }
  void add_adapters(const StepContext& context, const InputTensor& x, const View& y,
                    Saved& saved) const;
  void add_adapter_gradients(const StepContext& context, const InputTensor& dy, const View& dx,
                             Saved& saved) const;
  void add_gradient_of_weight(const StepContext& context, const Saved& saved) const;
  InputTensor allocate_x(const StepContext& context, int64_t rows,
                         QuantizedInput::Memory memory) const;
  /// dW[N, K] (+)= dy^T x.
  void make_weight_gradient(const StepContext& context, const Saved& operands) const;
  /// The same where all tensor ranks have the weight, and each its rows of x and dy.
  void make_partial_gradient(const StepContext& context, const Saved& operands) const;

  LinearPlan plan_;
  Parameter* bias_;
  QuantizedInput x_;
  LinearWeight weight_;
  QuantizedInput dy_;
  struct AdaptedColumns {
    int64_t first;
    float scale;
  };
  std::vector<Linear> adapters_;         ///< A and B of the first, A and B of the next
  std::vector<AdaptedColumns> adapted_;  ///< by each of them
};

}  // namespace fp8train
