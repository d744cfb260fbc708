#pragma once
// A mixture of experts in place of the feed-forward layer of a block. A router chooses the experts
// of each token. An expert is an Mlp that processes the rows of its tokens, and rows of zeros
// behind them: it has memory for a number of rows that is known before (capacity()), a multiple of
// what its plan's wgrad contracts. Tokens that come after them are dropped. In a dropless mixture
// the host reads how many tokens each expert has, and the rows of all experts have memory for any
// such numbers (slots()). The outputs of a token's experts, times the router's probabilities, are
// added in the order of choice, and to that of an expert that processes all tokens, if there is
// one.
//
// Ranks of Group::expert have different experts. Each has the router, and a capacity of each expert
// for its own tokens; it sends the rows of experts to the ranks that have them, and gets back what
// these make of them. What is dropped does not depend on their number.
//
// The router computes in fp32, and the forward pass that is run again for backward makes the same
// choices. Choices are counted in backward, which runs once, or in an evaluation.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "nn/dropless_rows.h"
#include "nn/mlp.h"
#include "nn/moe_shape.h"
#include "nn/parameter.h"
#include "nn/saved_input.h"
#include "ops/routing/router.h"

namespace fp8train {

/// Experts with their router.
class Moe {
 public:
  struct Saved {
    ConstView x;                  ///< [rows, C]
    View logits, probabilities;   ///< fp32 [rows, E] and [rows, k]
    View chosen, slots, sources;  ///< of ops::SlotAssignment
    View outputs;                 ///< [slots, C], of the experts, for this rank's tokens
    std::vector<int64_t> begins;  ///< of the rows of each of its experts, and the end of the last
    std::vector<Mlp::Saved> experts;
    Mlp::Saved shared;
  };
  /// The parameters of the router, both fp32.
  struct Router {
    Parameter* weight;  ///< [E, C]
    Parameter* bias;    ///< [E], not trained by gradients; null: there is none
  };

  /// The experts that a rank has, and the format in which it sends rows to those of other ranks.
  struct Dispatch {
    ExpertShare share;
    SavedFormat format;
  };

  /// `experts`: all of them, of which it has those of the share.
  Moe(const MoeShape& shape, const MoeSettings& settings, Router router, std::vector<Mlp> experts,
      std::optional<Mlp> shared, const Dispatch& dispatch = {});

  /// Calls visit(Linear&) in order of execution.
  template <typename Visit>
  void for_each_linear(const Visit& visit) {
    for (Mlp& expert : experts_) {
      expert.for_each_linear(visit);
    }
    if (shared_) {
      shared_->for_each_linear(visit);
    }
  }
  const Parameter* bias() const { return router_.bias; }
  const MoeShape& shape() const { return shape_; }
  /// int64 [E + 1]: backward adds the choices of each expert, and those that were dropped. Forward
  /// passes that train nothing add theirs to `untrained`.
  void set_loads(const View& loads, const View& untrained) {
    loads_ = loads;
    untrained_loads_ = untrained;
  }
  /// double [2], device memory: backward passes that collect statistics add the balance losses and
  /// the z losses of all tokens.
  void set_losses(double* sums) { losses_ = sums; }

  /// Allocates an input of the type and the shape of y.
  InputTensor allocate_input(const StepContext& context, const View& y) const;
  /// As those of Mlp.
  void forward(const StepContext& context, const InputTensor& x, View y, Saved& saved) const;
  /// The rows are `batch` sequences.
  void backward(const StepContext& context, ConstView dy, View dx, int64_t batch,
                Saved& saved) const;
  void add_weight_gradients(const StepContext& context, const Saved& saved) const;

  /// Sets the capacity of training passes in a step, from 0.
  void enter_step(int64_t step) { warms_up_ = settings_.warms_up(step); }
  /// Returns the rows of all experts of a dropless mixture in the backward passes since the last
  /// call.
  int64_t take_dropless_rows() { return std::exchange(dropless_rows_, 0); }
  /// Returns the rows of an expert for the `rows` tokens of a rank, in this step; of a dropless
  /// mixture those that no expert has more of.
  int64_t capacity(int64_t rows, bool trains) const;
  /// Returns the rows of all experts together for them.
  int64_t slots(int64_t rows, bool trains) const;

 private:
  void choose(const StepContext& context, Saved& saved) const;
  DroplessRows dropless(int64_t rows, bool trains) const;
  View find_begins(const StepContext& context, Saved& saved) const;
  Arena& memory_of_inputs(const StepContext& context) const;
  void send(const StepContext& context, const View& rows) const;
  void send_back(const StepContext& context, const View& rows) const;
  void send_codes(const StepContext& context, const View& rows) const;
  void swap_to_experts(const StepContext& context, const View& sent, const View& received) const;
  void copy_blocks(const StepContext& context, const View& by_rank, const View& by_expert,
                   bool to_experts) const;
  /// Experts of which a dry run does not find equal numbers of rows, and one more.
  size_t different() const { return settings_.dropless && experts_.size() > 1 ? 2 : 1; }
  static View of_expert(const Saved& saved, const View& rows, size_t i) {
    return rows_of(rows, saved.begins[i], saved.begins[i + 1] - saved.begins[i]);
  }
  bool balances() const { return settings_.balance_loss != 0.0; }
  void add_losses(const StepContext& context, const View& losses, const Saved& saved) const;
  std::pair<View, int64_t> count(const StepContext& context, int64_t batch,
                                 const Saved& saved) const;
  View backward_of_router(const StepContext& context, ConstView dy, int64_t batch,
                          const Saved& saved) const;

  MoeShape shape_;
  MoeSettings settings_;
  Router router_;
  std::vector<Mlp> experts_;  ///< those of this rank
  std::optional<Mlp> shared_;
  SavedFormat dispatch_;
  int64_t multiple_ = 16;  ///< of a capacity
  bool warms_up_ = false;
  mutable int64_t dropless_rows_ = 0;
  View loads_, untrained_loads_;
  double* losses_ = nullptr;
};

}  // namespace fp8train
