#pragma once
// The scales of a model's quantized tensors. Every scaled tensor role of every linear layer, and of
// attention in FP8, has a slot: an amax, a scale, its reciprocal, a history if the policy is
// delayed, and sampled statistics. All of it lives on the device and belongs to the ScalingState;
// the host reads it only for metrics, checkpoints and the ends of first windows.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "ops/cast/quantize.h"
#include "tensor/encoded.h"
#include "tensor/tensor.h"

namespace fp8train {

/// The error of one tensor's cast; device memory, sampled as the statistics are.
struct CastSample {
  double signal;  ///< sum of x^2
  double noise;   ///< sum of (x - codes / scale)^2
  float amax;     ///< max |x|
};

/// The scales of a checkpoint are of another plan: other slots, or histories of another length.
class OtherScales : public CheckpointError {
  using CheckpointError::CheckpointError;
};

/// The scale of one tensor and its history; pointers are device memory, valid once
/// ScalingState::allocate has run.
struct ScalingSlot {
  std::string layer;  ///< "layers.0.attention.qkv"
  std::string role;   ///< "x", "w", "dy"
  TensorFormat format;
  uint64_t index = 0;           ///< among all slots of a model: the key of its random draws
  bool begins_at_zero = false;  ///< `amax`, in each pass: ScalingState::begin_pass()
  /// The scale follows from the tensor itself: current scaling, or a first window now
  /// (ScalingState::read_windows()).
  bool scales_now = false;
  float* amax = nullptr;
  float* scale = nullptr;  // this and the next stay 1 if blocks alone have scales
  float* scale_inv = nullptr;
  ops::QuantizeStatistics* statistics = nullptr;
  CastSample* sample = nullptr;
};

/// The passes over a micro-batch that cast the tensor of a slot.
enum class ScalingPass : uint8_t { both, forward, backward };

/// Which slots with current_at_first are in their first window.
enum class FirstWindows : uint8_t { none, some, all };

/// A slot's numbers as read by the host.
struct SlotReport {
  const ScalingSlot* slot;
  float scale;
  ops::QuantizeStatistics statistics;
  CastSample sample;

  /// 10 log10(signal / noise), to a hundredth. There is none without a sample, for zeros, for a
  /// cast without error, and if x was not finite.
  std::optional<double> snr_db() const;
};

/// The scales, histories and statistics of all tensors that the plan scales.
class ScalingState {
  struct Group;

 public:
  /// Lets backward passes follow forward passes of later micro-batches: begin_pass() and update()
  /// may then be of one pass. Called before the first add().
  void separate_passes() { separates_passes_ = true; }
  /// The pass of the slots that are added from here on. forward: those whose role begins with "d"
  /// are of the backward pass.
  void set_pass(ScalingPass pass) { pass_ = pass; }
  /// The chunk of a pipeline stage whose slots are added from here on.
  void set_chunk(int chunk) { chunk_ = chunk; }
  /// False: slots that are added from here on are those of layers that another pipeline stage has.
  /// They are counted, and are nothing else.
  void set_present(bool present) { present_ = present; }

  /// Adds a slot; the pointer stays valid for the life of the state. `of_pass` says that its tensor
  /// is another one in each pass over the model. Throws InternalError after allocate().
  const ScalingSlot* add(std::string layer, std::string role, const TensorFormat& format,
                         bool of_pass = false);

  /// Allocates and initializes: scales 1, histories 0. Call once, after the last add().
  void allocate(Device& device);

  bool empty() const { return slots_.empty(); }
  const std::vector<std::unique_ptr<ScalingSlot>>& slots() const { return slots_; }
  /// Returns "LAYER.ROLE" of all slots of the model, also of those of other stages, in their order.
  std::vector<std::string> names() const;

  /// Returns the groups of slots with one rule that are updated after a micro-batch of optimizer
  /// step `step` (counted from 0): those with delayed scaling, every `interval` steps;
  /// WindowUnit::step only if the micro-batch `ends_step`. The result is a set of bits, for
  /// update().
  uint64_t due(int64_t step, bool ends_step = true) const;

  /// Notes that an update() with `due` has been submitted, also by a recording.
  void note_update(uint64_t due);
  /// Sets ScalingSlot::scales_now of slots with current_at_first: a first window lasts until its
  /// history is full and begins again with an amax that is not finite, slot by slot. Waits for the
  /// device if an update may have changed that; on meta all windows are over then. Called before
  /// each pass, outside of recordings.
  void read_windows();
  /// Returns the first windows as read_windows() found them; none if no rule says current_at_first.
  FirstWindows first_windows() const;
  /// Ends all first windows, as after many steps.
  void end_first_windows();
  /// Begins scaling again, as at the start of a run.
  void restart();

  /// Begins a pass over the model: the amax of slots that scale now, whose tensor is another one in
  /// each pass, becomes 0 (ScalingSlot::begins_at_zero). `pass`: of the slots of that pass in that
  /// chunk.
  void begin_pass(Stream stream, ScalingPass pass = ScalingPass::both, int chunk = 0) const;

  /// Forgets the amax of weights with current scaling, before they are cast again.
  void clear_current_weights(Stream stream) const;

  /// Both enclose a pass that is not a part of training. They keep amax and scale of slots with
  /// current_at_first, which casts of the first window overwrite; outside of that window there is
  /// nothing to do. begin_evaluation() calls read_windows().
  void begin_evaluation(Stream stream);
  void end_evaluation(Stream stream) const;

  /// Ends a micro-batch: moves amax values of the groups that are due into histories and sets the
  /// scales of the next micro-batch or step. Scales of slots with current scaling are left alone; a
  /// slot whose blocks have scales of their own only has an amax, which is reset. *squared_norm
  /// (device memory) becomes NaN when an amax of any slot is not finite. `pass`: ends that pass of
  /// a micro-batch in that chunk, whose slots it updates.
  void update(Stream stream, uint64_t due, double* squared_norm,
              ScalingPass pass = ScalingPass::both, int chunk = 0);

  /// The amax and scales of some slots at one time.
  struct StoredScales {
    std::vector<Group*> groups;
    Tensor values;  // [3, slots]
    std::vector<bool> scales_now;
  };
  /// Returns memory for those of a pass in all chunks, if passes are separate.
  StoredScales make_stored_scales(ScalingPass pass) const;
  /// Copy them to `stored`, and back: a backward pass reads those of its own forward pass, and
  /// weight gradients those of both passes.
  void store_scales(Stream stream, StoredScales& stored) const;
  void restore_scales(Stream stream, const StoredScales& stored) const;

  /// Whether casts draw random bits (ops::CastOptions).
  bool rounds_stochastically() const;

  /// Whether scales follow from earlier steps: the amax of such slots lives from one micro-batch to
  /// the next until it is due.
  bool keeps_state() const;

  /// Returns the amax of all slots, fp32 [slots], which begin with those of shared_amax().
  View amax() const { return amax_.empty() ? View{} : amax_.view(); }
  /// Returns the amax values on which ranks may agree. The others have AmaxReduction::none.
  View shared_amax() const { return shared_amax_; }
  /// Whether ranks agree on shared_amax() before update() after such a micro-batch: some delayed
  /// scale is the same on all.
  bool reduces(bool ends_step) const;

  /// Reads scales, statistics and samples of all slots; waits for the device.
  std::vector<SlotReport> report() const;

  /// A tensor of the state that a checkpoint holds: "scaling.layers.0.mlp.up.x.amax_history".
  struct SavedTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<float> values;
    bool of_rank = false;  ///< AmaxReduction::none: each rank has its own
  };
  /// Reads the state of all delayed scales; waits for the device.
  std::vector<SavedTensor> save() const;
  /// Returns "scaling.NAME.scale[0] is -1, .." for the first value that no update can have left, or
  /// an empty text. `tensors` are those of save(), in its order, with any values.
  std::string impossible_value(const std::vector<SavedTensor>& tensors) const;
  /// Sets the state that save() returned, or that of earlier versions: "scaling.0.scale" [slots].
  /// Throws OtherScales when a tensor is missing or has another shape, and CheckpointError for an
  /// impossible value.
  void load(const std::vector<SavedTensor>& tensors);

 private:
  struct Group {
    TensorFormat format;  // policy and delayed rule are common to the group; the dtype may differ
    ScalingPass pass = ScalingPass::both;
    int chunk = 0;
    std::vector<ScalingSlot*> slots;
    View amax;  // a part of all slots'
    Tensor scale, scale_inv, history, cursor, format_max;
    Tensor updates_left;  // with current_at_first, as in ops::DelayedScalingState
  };
  /// Returns all slots of the model, in their order.
  std::vector<const ScalingSlot*> of_all_stages() const;
  Group& group_of(const TensorFormat& format, ScalingPass pass, int chunk);
  template <typename Condition>
  StoredScales stored_scales_of(const Condition& holds) const;
  static void copy_scales(Stream stream, const StoredScales& stored, bool back);
  /// Returns the tensors of a group that a checkpoint holds: fp32 and int32.
  static std::vector<std::pair<const char*, View>> saved_parts(const Group& group);
  void set_updates_left(Group& group, int32_t updates);

  Device* device_ = nullptr;
  bool separates_passes_ = false;
  ScalingPass pass_ = ScalingPass::forward;
  int chunk_ = 0;
  bool present_ = true;
  std::vector<std::unique_ptr<ScalingSlot>> absent_;  ///< of other stages
  std::vector<std::unique_ptr<ScalingSlot>> slots_;
  std::vector<std::unique_ptr<Group>> groups_;
  Tensor amax_;
  View shared_amax_;
  bool windows_moved_ = false;  // since read_windows()
  StoredScales evaluated_;      // with current_at_first, before an evaluation
  Buffer statistics_, samples_;
};

}  // namespace fp8train
