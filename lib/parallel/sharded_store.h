#pragma once
// The memory of parameters whose optimizer's work ranks share by elements: whole values and
// gradients where layers find them, which ParameterGatherer (nn/context.h) fills, and this rank's
// parts of them, as a layout says.

#include <vector>

#include "nn/parameter.h"
#include "parallel/shared_slots.h"
#include "parallel/store_layout.h"

namespace fp8train {

/// Owns the values and the gradients of a store under a layout.
class ShardedStore final : public StoreShards {
 public:
  /// `parameters` outlives it.
  ShardedStore(const ParameterStore& parameters, StoreLayout layout);

  void allocate(Device& device) override;
  Share share() const override {
    return {layout_.shared.rank, layout_.shared.count, layout_.writes};
  }
  std::vector<View> cleared_gradients() const override {
    return layout_.adds_shards ? updated_gradients()
                               : fp8train::cleared_gradients(gradients_, all());
  }
  std::vector<View> updated_gradients() const override;
  std::vector<View> shared_scales(bool of_experts) const override;
  View block_amax(bool of_experts) const override {
    const Tensor& amax = block_amax_[of_experts ? 1 : 0];
    return amax.empty() ? View{} : amax.view();
  }
  View operand_memory(Device& device, const Parameter& parameter, MemoryCategory category,
                      DType dtype, const Shape& shape) override;

  const StoreLayout& layout() const { return layout_; }
  /// Returns this rank's shard of a segment's values, flat.
  Encoded value_shard(size_t segment) const;
  /// Returns the gathered form of a segment: this rank's shard, and the memory for all shards.
  Encoded gathered_shard(size_t segment) const;
  Encoded gathered_whole(size_t segment) const;
  /// Returns the gathered form of a parameter.
  Encoded gathered_value(size_t parameter) const;
  /// Whether the parameters of a segment are trained. The next functions are for such.
  bool has_gradients(size_t segment) const { return first_of(segment).trained; }
  /// Return the whole gradients of a segment, and this rank's shard of their sum over ranks.
  Encoded whole_gradients(size_t segment) const { return whole(gradients_, segment); }
  View gradient_shard(size_t segment) const;
  /// Returns the gradients of a segment that must be zero before a pass adds to them, and all gaps,
  /// as fp32 words; `overwrites` leaves out those of Parameter::overwritten.
  std::vector<View> cleared_gradients(size_t segment, bool overwrites) const;

 private:
  void allocate_wholes(Device& device);
  void allocate_shards(Device& device);
  void allocate_operands(Device& device);
  void allocate_block_amax(Device& device, bool of_experts);
  void find_views();
  const std::vector<std::unique_ptr<Parameter>>& all() const { return *parameters_; }
  size_t index_of(const Parameter& parameter);
  View shared_slot(Device& device, size_t segment, MemoryCategory category, DType dtype,
                   int64_t count);
  const Parameter& first_of(size_t segment) const;
  bool gathers_values(size_t segment) const;
  int64_t begin_of(size_t parameter) const;
  bool shard_is_in_place(size_t segment) const;
  Encoded whole(const StoredPool& pool, size_t segment) const;

  const std::vector<std::unique_ptr<Parameter>>* parameters_;
  StoreLayout layout_;
  StoredPool values_, gradients_;                     ///< a queue is a segment
  StoredPool value_shards_, gradient_shards_;         ///< of segments that have none in place
  std::vector<size_t> value_shard_, gradient_shard_;  ///< for each parameter, for each segment
  /// Copies or codes that are gathered, of each segment: whole, and this rank's shard.
  struct Operand {
    Tensor own_whole, own_shard;
    View whole, shard;
  };
  std::vector<Operand> gathered_operands_;
  std::vector<bool> operand_is_taken_;  ///< one flag for each parameter
  Tensor
      block_amax_[2];  ///< Updated::block_amax of all, for equal shares of ranks; of experts: [1]
  size_t last_index_ = 0;  ///< of index_of()
  SharedSlots slots_;
  std::vector<Tensor> operands_;
};

}  // namespace fp8train
