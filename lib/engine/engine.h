#pragma once
// Everything that one training step touches, on one device: model, optimizer, arenas, the batch and
// the loss scalars. The engine is built twice from the same settings: on the meta device, where a
// step is run to plan the memory, and then for real with that plan reserved, after which a step
// allocates nothing.

#include <algorithm>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/flight_recorder.h"
#include "comm/mesh.h"
#include "device/arena.h"
#include "device/device.h"
#include "device/recording.h"
#include "engine/batch.h"
#include "engine/expert_loads.h"
#include "engine/pipeline_stage.h"
#include "engine/step_settings.h"
#include "model/decoder.h"
#include "optim/optimizer.h"
#include "parallel/strategy.h"
#include "parallel/tensor_ranks.h"
#include "precision/plan.h"

namespace fp8train {

class Engine;

/// Everything that decides the work of a step: model, plan, optimizer, batch and ranks.
struct EngineSettings {
  ModelConfig model;  ///< completed, with the vocabulary
  PrecisionPlan plan;
  OptimizerSettings optimizer;
  StepSettings step;
  StrategySettings strategy;  ///< read if there are several ranks
  bool trains = true;  ///< false for evaluation and generation only: no gradients, no optimizer
  /// Steps in which no GEMM is scaled, [begin, end) each (plain_steps()).
  std::vector<std::pair<int64_t, int64_t>> plain_steps;
  bool masks_documents = false;  ///< batches say where documents begin (Batch::document_starts)
  bool counts_targets = false;   ///< batches say how many targets a step has (Batch::step_targets)
  int64_t loss_history = 0;      ///< losses of that many steps are stored on the device; 0: none
  /// The rank's part of the model in a dry run; empty: that of its pipeline stage.
  std::optional<ModelPart> part;
  /// Makes what generates samples with an engine, whose memory dry runs count; it may return null.
  /// Null: the run has no samples.
  std::function<std::shared_ptr<void>(Engine& engine)> samples;

  /// Returns the positions that a rank has of each sequence, and the rows of its micro-batch that
  /// ranks of the tensor axis share.
  int64_t length_of_rank() const { return step.seq_length / strategy.layout.context; }
  int64_t rows_of_rank() const { return step.micro_batch_size * length_of_rank(); }

  bool is_plain(int64_t step_index) const {
    return std::any_of(plain_steps.begin(), plain_steps.end(), [step_index](const auto& range) {
      return range.first <= step_index && step_index < range.second;
    });
  }
};

/// Bytes that a step needs beyond the persistent buffers.
struct StepPlan {
  size_t saved_bytes = 0;  ///< of each micro-batch in flight
  size_t held_bytes = 0;   ///< of each whose weight gradients are actions of their own
  size_t scratch_bytes = 0;
  SavedOffload::Bytes offloaded = {};
};

/// The loss of a step or of an evaluation, over all ranks.
struct LossReport {
  double mean = 0;  ///< cross entropy, in nats per target
  int64_t targets = 0;
  double z_loss = 0;  ///< mean of what training adds to it
  /// Of an evaluation: the share of the choices of experts that were dropped.
  double dropped = 0;
};

/// How long ranks have waited in a pipeline; empty without one.
struct StageWaits {
  /// Seconds of each rank since the last call, in rank order; empty where they are not known.
  std::vector<double> seconds;
  std::vector<double> planned;  ///< StagePlan::idle
};

/// Returns the part of these settings that a strategy needs.
StrategySite strategy_site(const EngineSettings& settings, const Mesh& mesh);

/// Runs the steps of one rank: forward, backward, exchange of gradients and update. It owns the
/// model, the optimizer and all memory of a step.
class Engine {
 public:
  /// `comm` (null: one rank) outlives the engine. With several ranks constructing, stepping and
  /// reading losses are collective; each rank's batches are its own, and weights, optimizer and
  /// scales stay the same on all. With zero_stage 3 all that runs the model is collective.
  Engine(Device& device, const EngineSettings& settings, Communicator* comm = nullptr);
  /// Exchanges under way end before the memory that they read and write is freed.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Reserves the arenas. Must be called before the first step on a real device.
  void reserve(const StepPlan& plan);

  /// Lets the steps of a pipeline's stage have so few micro-batches, in 1F1B or else one after
  /// another, where none needs more memory than others: for dry runs. 0: all. Returns whether they
  /// have.
  bool shorten_steps(int64_t micro_batches);

  /// Switches StepSettings::cuda_graphs.
  void set_cuda_graphs(bool on) { settings_.step.cuda_graphs = on; }
  StepPlan high_water() const;

  Device& device() { return *device_; }
  Decoder& model() { return model_; }
  /// Returns the optimizer of an engine that trains.
  Optimizer& optimizer() {
    check(optimizer_ != nullptr, "this engine does not train");
    return *optimizer_;
  }
  const EngineSettings& settings() const { return settings_; }

  /// Makes all GEMM operands. Must be called after weights were initialized or loaded.
  void weights_changed();

  /// Returns the strategy, which lays the work over ranks and knows the values and replicas of
  /// parameters.
  Strategy& strategy() { return *strategy_; }
  const Mesh& mesh() const { return strategy_->mesh(); }
  /// Returns the ranks that share each layer; null: one has all of it.
  RankExchange* tensor_ranks() { return tensor_ranks_.get(); }
  /// Returns the ranks that have different experts; null: one has all.
  RankExchange* expert_ranks() { return expert_ranks_.get(); }
  /// Returns the bytes that ranks which share layers, sequences or experts have sent each other.
  Traffic sent_by_layers() const {
    Traffic sent;
    for (const TensorRanks* ranks :
         {tensor_ranks_.get(), context_ranks_.get(), expert_ranks_.get()}) {
      sent += ranks == nullptr ? Traffic() : ranks->sent();
    }
    return sent;
  }

  /// Runs one optimizer step: gradient_accumulation_steps micro-batches from `next`, then the
  /// update with learning rate `lr`. Stages of a pipeline take the same batches.
  template <typename NextBatch>
  void step(NextBatch&& next, int64_t step_index, double lr, bool collect_statistics) {
    optimizer().set_learning_rate(lr);
    if (stage_ != nullptr) {
      run_stage(stage_->short_step ? *stage_->short_step : stage_->step,
                [&](BatchMemory& memory) { upload(next(), memory); },
                {.step_index = step_index, .collects_statistics = collect_statistics});
      return end_step(collect_statistics);
    }
    for (int64_t i = 0; i < settings_.step.gradient_accumulation_steps; ++i) {
      micro_batch(next(), step_index, collect_statistics,
                  {.first = i == 0, .last = i + 1 == settings_.step.gradient_accumulation_steps});
    }
    end_step(collect_statistics);
  }

  /// Whether evaluations and samples run without scaled GEMMs now.
  bool plain() const { return plain_; }
  /// Decides whether the GEMMs of this step are scaled, as in evaluations after it, and sets the
  /// capacities of experts.
  void enter_step(int64_t step_index);

  /// Sets the scales of delayed plans from a batch without training: a forward and backward pass
  /// whose gradients are dropped.
  void calibrate(const Batch& batch);

  /// Whether all ranks run the model together, in each pass.
  bool passes_are_collective() const {
    const ParameterGatherer* gatherer = strategy_->gatherer();
    return tensor_ranks_ != nullptr || context_ranks_ != nullptr || expert_ranks_ != nullptr ||
           stage_ != nullptr || (gatherer != nullptr && gatherer->gathers_per_pass());
  }

  /// Returns the loss of the last step over all ranks. Waits for the device. `of_ranks` gets the
  /// `seconds` of each rank.
  LossReport step_loss(const SectionSeconds& seconds = {},
                       std::vector<SectionSeconds>* of_ranks = nullptr) const;

  /// Collective.
  StageWaits take_stage_waits();

  /// Returns the loads of the last step, of a model with experts that trains, and the losses of
  /// its routers. Waits for the device. Collective.
  ExpertLoads expert_loads();

  /// Reads scales, statistics and samples of all slots of the model: those of experts and of other
  /// pipeline stages from the ranks that have them, and of tensors of which ranks that share layers
  /// cast parts those of the whole. Waits for the device. Collective.
  std::vector<SlotReport> slot_reports();

  /// Returns the losses of the steps since the last call, over all ranks, in nats per target; waits
  /// for the device. Collective. At most EngineSettings::loss_history steps lie between two calls.
  std::vector<double> take_losses();

  /// Runs a batch forward, as an evaluation does, and shows `watch` its activations.
  void watch_forward(const Batch& batch, ActivationWatch& watch);

  /// Adds a batch to the evaluation totals, which begin_evaluation() clears. One rank that has the
  /// whole model and masks no documents takes batches with fewer rows and columns too.
  void begin_evaluation();
  void evaluate(const Batch& batch);
  LossReport evaluation_loss();

  /// Runs a batch forward, as evaluate() does, and returns the loss of each target in nats, [rows *
  /// columns], or 0 for ignored targets. The batch may have fewer rows and columns than the engine.
  /// Not collective; waits for the device. Throws InternalError in a stage of a pipeline.
  std::vector<float> target_losses(const Batch& batch);

 private:
  struct Totals {
    double sum;
    int64_t count;
    double z_sum;
  };

  /// The position of a micro-batch in its step: the first overwrites gradients, the last completes
  /// them.
  struct Position {
    bool first, last;
    bool trains = true;  ///< an update follows
  };
  /// The key of a recording: micro-batches of the same form replay the same one.
  struct Form {
    bool collects_statistics, overwrites_gradients, plain, warms_up;
    FirstWindows windows;  ///< none or all: micro-batches between are not recorded
    uint64_t due;          ///< scales

    auto operator<=>(const Form&) const = default;
  };

  /// A forward or backward pass of a pipeline stage.
  struct StagePass {
    int64_t step_index = 0;
    bool collects_statistics = false;
    bool trains = true;                ///< an update follows
    bool first = false, last = false;  ///< the micro-batch, in its step
    GradientListener* listener = nullptr;
  };
  using LoadBatch = std::function<void(BatchMemory&)>;

  static constexpr int kTrainingTotals = 0;
  static constexpr int kEvaluationTotals = 1;

  StepContext context(const MicroBatchMemory& memory, bool training, bool collect_statistics);
  /// Returns the memory of an action of a stage, or of all that runs on its own.
  MicroBatchMemory memory_of(const StageAction& action = {}) {
    return {*batches_[static_cast<size_t>(action.batch)],
            *saved_[static_cast<size_t>(action.saved)], *passes_[static_cast<size_t>(action.pass)]};
  }
  void run_stage(const StagePlan& plan, const LoadBatch& load, StagePass pass);
  StepContext context_of_stage(const MicroBatchMemory& memory, const StagePass& pass);
  void run_forward(const MicroBatchMemory& memory, const StagePass& pass);
  void run_backward(const MicroBatchMemory& memory, const StagePass& pass, const View& gradient);
  void run_weight_gradients(const MicroBatchMemory& memory, const StagePass& pass);
  void move_scales(const StagePass& pass, ScalingPass of_pass, int chunk);
  void run_batch(const Batch& batch, ActivationWatch* watch);
  void evaluate_smaller(const Batch& batch, float* losses);
  void evaluate_parts(ActivationWatch* watch);
  void micro_batch(const Batch& batch, int64_t step_index, bool collect_statistics,
                   Position position);
  void end_step(bool collect_statistics);
  /// Each rank has counted what is at the maximum of its part of a gradient, or of its sums.
  void update_sum_scales();
  void agree_on_amax();
  void clear_step();
  /// Of the ranks with the same blocks, int64 [ranks, blocks with experts, E + 1].
  View loads_of_ranks();
  void read_router_losses(ExpertLoads& loads) const;
  double evaluation_drops() const;
  void balance_experts();
  void step_optimizer(bool collect_statistics);
  template <typename Work>
  void run(RepeatedWork& repeated, const Work& work);
  void upload(const Batch& batch, BatchMemory& memory) const;
  void upload_part(const Batch& batch, BatchMemory& memory) const;
  float target_share(const Batch& batch) const;
  /// Numbers the pass for casts that round stochastically (StepContext::pass).
  void number_pass(const BatchMemory& memory, int64_t step_index, int64_t micro_batch) const;
  LossTotals totals(int slot) const;
  LossReport read_totals(int slot, const SectionSeconds& seconds = {},
                         std::vector<SectionSeconds>* of_ranks = nullptr) const;
  void clear_totals(int slot);
  void store_loss();

  Device* device_;
  EngineSettings settings_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<TensorRanks> tensor_ranks_;   // null: one rank has all of each layer
  std::unique_ptr<TensorRanks> context_ranks_;  // null: one rank has whole sequences
  std::unique_ptr<TensorRanks> expert_ranks_;   // null: one rank has all experts
  Decoder model_;
  std::unique_ptr<Optimizer> optimizer_;  // set if the engine trains
  Arena scratch_;
  std::unique_ptr<PipelineStage> stage_;  // null: the model is whole
  // As many as are in flight at most, each:
  std::vector<std::unique_ptr<BatchMemory>> batches_;
  std::vector<std::unique_ptr<Arena>> saved_;
  std::vector<std::unique_ptr<PassMemory>> passes_;
  Buffer totals_;          // [0] training, [1] evaluation
  Tensor gathered_loads_;  // loads_of_ranks(), of several
  Buffer loss_history_;    // Totals of each step since take_losses()
  int64_t stored_losses_ = 0;
  int64_t micro_batch_ = 0;   // in its step
  int64_t counted_rows_ = 0;  // StepContext::counted_rows of an evaluation
  bool plain_ = false;        // no GEMM of the last step was scaled
  // There is one recording for each form of a micro-batch, and of the update (with or without
  // statistics).
  std::map<Form, RepeatedWork> micro_batches_;
  RepeatedWork updates_[2];
};

}  // namespace fp8train
