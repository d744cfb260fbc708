#pragma once
// A decoder-only transformer put together from nn: embedding, blocks, final norm, head. Owns its
// parameters, gradients, GEMM operands and scaling state on one device. On the meta device the same
// code counts instead of computing.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "model/decoder_settings.h"
#include "model/linear_sites.h"
#include "model/model_config.h"
#include "model/saved_offload.h"
#include "model/tensor_share.h"
#include "nn/block.h"
#include "nn/head.h"
#include "nn/parameter.h"
#include "ops/pointwise/embedding.h"
#include "precision/linear_plan.h"
#include "precision/plan.h"
#include "precision/scaling_state.h"

namespace fp8train {

/// The part of a model that a pipeline stage has.
struct ModelPart {
  std::vector<std::pair<int64_t, int64_t>> chunks;  ///< of consecutive blocks: first and end
  bool embeds = true;    ///< has the embedding; with tied embeddings the part with the head, too
  bool has_head = true;  ///< has the final norm and the head

  /// Returns the chunk that has a block, or as many as there are.
  size_t chunk_of(int64_t block) const {
    const auto has = [&](const auto& chunk) {
      return chunk.first <= block && block < chunk.second;
    };
    return static_cast<size_t>(std::find_if(chunks.begin(), chunks.end(), has) - chunks.begin());
  }
  bool is_whole() const { return embeds && has_head; }
  int64_t blocks() const {
    int64_t count = 0;
    for (const auto& [first, end] : chunks) {
      count += end - first;
    }
    return count;
  }
  /// Returns the number that a block has in the whole model. `index`: among those of the part.
  int64_t block_at(int64_t index) const {
    for (const auto& [first, end] : chunks) {
      if (index < end - first) {
        return first + index;
      }
      index -= end - first;
    }
    return index;
  }
};

/// One micro-batch in flight in a chunk: what its forward pass reads and leaves for its backward
/// pass.
struct MicroBatchPass {
  ConstView tokens, targets;  ///< int32 [B, T]
  /// [B * T, C], in the activation type: the stream before the blocks of a part without embedding,
  /// and after those of a part that is not the whole model.
  View x, y;
  int chunk = 0;                    ///< of ModelPart::chunks
  std::vector<Block::Saved> saved;  ///< of each block
};

/// How a decoder is built, apart from its shape and plan.
struct DecoderOptions {
  DecoderSettings settings;
  bool gradients = true;  ///< false: forward only, nothing is allocated for backward
  StoreSharing sharing;
  std::optional<ModelPart> part = {};  ///< nothing: the whole model
  TensorShare tensor = {};
  ExpertShare experts = {};
  bool offloads = false;  ///< Parameter::offloads
};

/// A decoder-only transformer with explicit forward and backward passes. It owns the parameters and
/// the scaling state; activations are in the arenas of the caller's StepContext.
class Decoder {
 public:
  /// Allocates everything on the device, which outlives the model. Until initialize() or a load,
  /// values are zeros, or uninitialized if units share memory. `config` is as completed() returns
  /// it. Throws ConfigError when the plan does not fit the model or heads are too long for the
  /// device; DeviceError when memory is short or the device cannot compute the plan's products.
  Decoder(Device& device, const ModelConfig& config, const PrecisionPlan& plan,
          const DecoderOptions& options);
  Decoder(const Decoder&) = delete;  // its layers point into it
  Decoder& operator=(const Decoder&) = delete;

  const ModelConfig& config() const { return config_; }
  const PrecisionPlan& plan() const { return plan_; }
  const ModelPart& part() const { return part_; }
  const TensorShare& tensor_share() const { return tensor_; }
  const ExpertShare& expert_share() const { return experts_; }
  /// Returns the names of all parameters without gradients, also of those that other ranks have.
  const std::vector<std::string>& frozen() const { return frozen_; }
  /// Returns null if activations stay on the device.
  SavedOffload* offload() const { return offload_.get(); }
  /// Returns the plans of the whole model's layers.
  const std::vector<LinearPlan>& linear_plans() const { return linear_plans_; }
  ParameterStore& parameters() { return parameters_; }
  ScalingState& scaling() { return scaling_; }

  /// Draws all initial values (ParameterStore::initialize).
  void initialize(uint64_t seed) { parameters_.initialize(*device_, seed); }
  /// Draws those of adapters alone.
  void initialize_adapters(uint64_t seed) { parameters_.initialize(*device_, seed, true); }

  /// Makes the GEMM operands of all weights or, `after_update`, only those that the optimizer step
  /// has not made. Called before the first pass, after each update and after values were set.
  /// Collective if ranks have parts of values.
  void refresh_weights(const StepContext& context, bool after_update);

  /// Returns the number of units of the store: the embedding, each block, and one for the layers
  /// after them. In a part of the model the first and the last may have no parameters.
  size_t units() const { return blocks_.size() + 2; }

  /// Calls visit(Linear&) for the layers whose weights belong to a unit, in order of execution,
  /// each before its adapters.
  template <typename Visit>
  void for_each_linear(size_t unit, const Visit& visit) {
    if (unit > 0 && unit <= blocks_.size()) {
      blocks_[unit - 1].for_each_linear([&](Linear& linear) { linear.for_each_layer(visit); });
    } else if (head_ != nullptr && (unit == 0) == tied()) {
      visit(head_->projection());
    }
  }

  /// Runs forward, loss and backward of one micro-batch, and adds to the totals and the gradients.
  /// tokens, targets: int32 [B, T]. Gradients are scaled by *loss_scale * gradient_factor, where a
  /// null loss_scale means 1, and StepContext::target_share replaces the factor if it is set.
  /// Asynchronous; the saved and scratch arenas are free again on return.
  void train_micro_batch(const StepContext& step, ConstView tokens, ConstView targets,
                         const LossTotals& totals, const float* loss_scale, float gradient_factor);

  /// The same in two calls, for a part of the model, between which other micro-batches run. The
  /// saved arena of `step` is that of this micro-batch, and its content is for the caller to
  /// release after the second call. The first one writes pass.y. `gradient`: like y; in a part
  /// without head it is that of y on entry. On return it is that of x.
  void forward_part(const StepContext& step, MicroBatchPass& pass);
  void backward_part(const StepContext& step, MicroBatchPass& pass, const View& gradient,
                     const LossTotals& totals, const GradientScale& scale);
  /// Adds the gradients of the blocks' weights that the second call has left
  /// (StepContext::held), which are complete afterwards, as all others of the chunk.
  void add_weight_gradients(const StepContext& step, const MicroBatchPass& pass) const;

  /// Returns int64 [blocks of this part with experts, E + 1], to which micro-batches add the
  /// choices of each expert, and those that were dropped; empty without experts.
  View expert_loads() const { return loads_.view(); }
  /// Returns those of the passes that train nothing.
  View evaluation_loads() const { return evaluation_loads_.view(); }
  /// Returns double [2] in device memory, to which all blocks add (Moe::set_losses()); null: their
  /// routers have no losses.
  double* router_losses() const { return static_cast<double*>(router_losses_.data()); }
  /// Sets the capacities of experts in a step, from 0.
  void enter_step(int64_t step);
  /// Returns the rows that the experts of this part have for a micro-batch of `tokens`.
  int64_t expert_rows(int64_t tokens);
  /// Returns those of dropless mixtures in all backward passes since the last call.
  int64_t take_dropless_rows();
  /// Moves the biases of routers, or this rank's parts of them. loads: those of all ranks with the
  /// same blocks, [ranks, blocks, E + 1].
  void balance_experts(const Stream& stream, ConstView loads, float rate, const int32_t* skip);

  /// Adds the loss of one batch to the totals; a part without head writes batch.y. Throws
  /// InternalError if step.training.
  void evaluate(const StepContext& step, MicroBatchPass batch, const LossTotals& totals);

  /// Appends pass.tokens [B, T] to the caches of the chunk, B for each block, advances their
  /// lengths, and returns the logits of the last position, [B, padded vocabulary] in the activation
  /// type, or nothing in a chunk without head, which writes pass.y. B or T is 1, and each tensor
  /// rank has all rows of x and y (WholeRows). Attention::forward() says what `step` has where
  /// lengths differ. The view is valid until the scratch arena is released. Throws InternalError if
  /// step.training, for other extents or a full cache.
  View next_token_logits(const StepContext& step, MicroBatchPass pass,
                         std::vector<KvCache>& caches);

 private:
  StepContext begin_pass(StepContext context, ScalingPass pass = ScalingPass::both,
                         int chunk = 0) const;
  void set_present(bool present) {
    parameters_.set_present(present);
    scaling_.set_present(present);
  }
  void add_embeddings();
  void add_head(const DecoderOptions& options);
  void make_parts(const StepContext& context);
  /// Called before a pass reads a unit's parameters. `next` is the unit after it.
  void use(const StepContext& context, size_t unit, size_t next);
  /// The same for the layers after the blocks.
  void use_head(const StepContext& context, size_t next);
  void begin_gradients(const StepContext& context, size_t unit) const;
  void complete(const StepContext& context, size_t unit) const;
  /// Whether a chunk begins with the embedding, or ends with the head.
  bool embeds(int chunk) const { return part_.embeds && chunk == 0; }
  bool has_head(int chunk) const {
    return head_ != nullptr && static_cast<size_t>(chunk) + 1 == part_.chunks.size();
  }
  /// Returns what moves the activations of a block, and its number among those that are moved;
  /// null: they stay.
  std::pair<SavedOffload*, size_t> offload_of(const StepContext& context, size_t unit) const;
  /// Returns the units of a chunk's blocks: the first, and the one after them.
  std::pair<size_t, size_t> units_of(int chunk) const;
  /// Takes the parameters that match a pattern from training, and with adapters all others than
  /// theirs.
  void freeze(const std::vector<std::string>& patterns);
  bool tied() const { return config_.tie_word_embeddings; }
  View embed(const StepContext& context, ConstView tokens, int64_t first_position, Arena& arena);
  void embed_over_ranks(const StepContext& context, ops::EmbeddingForward call) const;
  void add_embedding_gradients(const StepContext& context, ConstView tokens,
                               const View& gradient) const;
  /// Runs all blocks. `stream` has the embedded tokens and memory for branches on entry; on return
  /// the sum with the last block's branch is due.
  void run_blocks(const StepContext& context, Residual& stream, MicroBatchPass& pass,
                  std::span<const KvCache> caches);
  Residual forward(const StepContext& context, MicroBatchPass& pass, const View& branch);
  void run_head(const StepContext& context, const Residual& last, ConstView targets,
                const LossTotals& totals, const View& gradient, const GradientScale& scale);
  void backward(const StepContext& context, MicroBatchPass& pass, const View& gradient);
  bool is_exempt(int64_t block) const;
  void add_block(int64_t index, const DecoderSettings& settings);
  Mlp make_mlp(const std::string& name, const SavedFormat& pre_activation);
  Moe make_moe(const std::string& name, const MoeSettings& settings,
               const SavedFormat& pre_activation);
  void allocate_loads(bool trains, bool has_losses);
  ParameterFormats formats_of(const LinearPlan& linear) const;
  ParameterFormats head_formats() const;
  /// The part of the next parameter that this rank has.
  Sharding sharding_of(const Shape& whole, Split split, std::span<const int64_t> pieces) const;
  Sharding vocabulary() const;
  Parameter vector_of(const std::string& name, int64_t size, Init init, bool partial) const;
  Norm make_norm(const std::string& name, const SavedFormat& input);
  Linear make_linear(const std::string& name);
  Parameter* add_scales(const LinearSite& whole);
  void add_adapters(const LinearSite& whole, const LinearPlan& plan, Linear& linear);
  /// `plan.site`: the layer as one rank has it.
  Linear make_adapter(LinearPlan plan, Parameter parameter);
  /// Backward reads codes of the inputs of norms: nothing of the residual stream stays alive.
  bool encodes_residuals() const { return plan_.saved_norm.is_scaled(); }
  SavedFormat norm_input() const { return saved_format(plan_, plan_.saved_norm); }
  void allocate(const DecoderOptions& options);
  void fill_rotary_tables();

  Device* device_;
  ModelConfig config_;
  PrecisionPlan plan_;
  ModelPart part_;
  TensorShare tensor_;
  ExpertShare experts_;
  bool keeps_block_inputs_;
  std::vector<LinearPlan> linear_plans_;
  std::unordered_map<std::string, size_t> linear_index_;  // by name
  ParameterStore parameters_;
  ScalingState scaling_;
  Tensor cosines_, sines_;
  RotaryTables rotary_;
  Parameter* embedding_ = nullptr;
  Parameter* positions_ = nullptr;
  size_t first_trained_ = 0;                     ///< unit: backward ends with it
  std::vector<const Parameter*> frozen_biases_;  ///< of routers
  std::vector<std::string> frozen_;
  std::unique_ptr<SavedOffload> offload_;
  std::vector<Block> blocks_;
  Tensor loads_;  ///< int64 [blocks with experts, E + 1], of Moe; none where nothing trains
  Tensor evaluation_loads_;  ///< the same of passes that train nothing
  Buffer router_losses_;
  std::unique_ptr<Norm> final_norm_;
  std::unique_ptr<Head> head_;
};

}  // namespace fp8train
