#pragma once
// The context in which a layer runs: the device and its stream, the two arenas of the step, and the
// kind of pass. Layers never allocate elsewhere and never read anything back.

#include <cstddef>
#include <cstdint>

#include "device/arena.h"
#include "device/device.h"
#include "nn/rank_exchange.h"
#include "tensor/view.h"

namespace fp8train {

struct ChunkDeal;

/// Learns in the backward pass of a step's last micro-batch which gradients are complete, so that
/// their exchange can begin while the pass continues. All ranks are given the same in the same
/// order.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Called when the gradients of the parameters [begin, end) of the store are complete.
  virtual void gradients_complete(size_t begin, size_t end) = 0;
  /// Called between other work: exchanges that are under way continue as far as that takes no
  /// waiting.
  virtual void progress() = 0;
};

/// Brings together the values of parameters that are stored in parts by several ranks, and makes
/// space for their gradients (StoreShards). All ranks ask for the same in the same order.
class ParameterGatherer {
 public:
  enum class Gathered : uint8_t {
    stay,   ///< no new values: operands made of them are still valid
    new_,   ///< values as they are since they have changed
    again,  ///< values that were there since they have changed, and then gave way to others
  };
  static constexpr size_t kNone = ~size_t{0};

  virtual ~ParameterGatherer() = default;
  /// True: values, and the operands that layers make of them, give way to those of other units, and
  /// are gathered before each use. False: values are gathered once after they have changed.
  virtual bool gathers_per_pass() const = 0;
  /// Called before the values of a unit are read. They may be read until another unit in the same
  /// slots is gathered. `next` is the following unit, or kNone; its values are sent while this unit
  /// is used.
  virtual Gathered gather(size_t unit, size_t next) = 0;
  /// Replaces fp32 magnitudes by the largest of the ranks that share parameters, those of experts
  /// (Parameter::of_experts) or all others; NaN is larger than all.
  virtual void combine_amax(const View& amax, bool of_experts) = 0;
  /// Called before a backward pass writes the gradients of a unit. `overwrites` is as in
  /// StepContext.
  virtual void begin_gradients(size_t unit, bool overwrites) = 0;
};

/// Sees the output of each unit in a forward pass that is repeated to find a value that is not
/// finite. Null in all other passes.
class ActivationWatch {
 public:
  virtual ~ActivationWatch() = default;
  /// `unit`: 0 is the embedding, i + 1 block i. output: [tokens, hidden size].
  virtual void made(size_t unit, const View& output) = 0;
};

/// Gradients are multiplied by *loss_scale * factor.
struct GradientScale {
  const float* loss_scale = nullptr;  ///< device memory; null: 1
  float factor = 1.0F;
};

/// The stream, the memory and the settings of one pass through the model.
struct StepContext {
  Device* device;
  Stream stream;
  Arena* saved;  ///< memory that forward stores for backward; released by the owner of the backward
                 ///< pass
  Arena* scratch;  ///< temporaries of one layer
  /// Not null: weight gradients are made later than the other gradients of a backward pass, and
  /// their operands are here until then: those of x since the forward pass.
  Arena* held = nullptr;
  bool training = true;             ///< keep what backward needs and record amax values
  bool plain = false;               ///< no GEMM reads a scaled format, in all three passes
  bool collect_statistics = false;  ///< fill the slots' statistics and samples
  bool deterministic = false;       ///< as AttentionShape::deterministic; all else always is
  /// ScalingState::begin_pass() has been called, and the pass casts each tensor once (or again to
  /// the same bits): amax values are combined into slots with `begins_at_zero`.
  bool amax_is_clear = false;
  /// The first micro-batch of a step: gradients with Parameter::overwritten hold anything and are
  /// overwritten. All others are added to.
  bool overwrites_gradients = false;
  /// int32 [B, T], of whole sequences, if these hold several documents that do not see each other
  /// (ops::DocumentStarts); otherwise empty.
  ConstView document_starts;
  /// int32 [B, T / ranks] where ranks share sequences: t - row_starts[b, t] is the position of this
  /// rank's token t of sequence b in its document. Otherwise empty.
  ConstView row_starts;
  /// Device scalar: 1 / targets of the step if some positions are not targets; otherwise null.
  const float* target_share = nullptr;
  GradientScale loss_gradient = {};  ///< of losses that layers add, in a backward pass
  uint64_t seed = 0;                 ///< seed of casts that round stochastically
  const uint64_t* pass = nullptr;    ///< number of the pass, for ops::CastOptions
  GradientListener* listener = nullptr;
  ParameterGatherer* gatherer = nullptr;  ///< null: all values are where layers read them
  ActivationWatch* watch = nullptr;
  RankExchange* tensor_ranks = nullptr;  ///< the ranks that share each layer; null: one rank
  /// Partial results that this rank makes of each sum that tensor ranks divide: 1, or as many as
  /// make the result independent of their number (ParallelLayout::tensor_parts).
  int64_t tensor_parts = 1;
  bool sums_in_fp32 = false;  ///< partial results of such sums cross in fp32, not in bf16

  /// The ranks that share each sequence; null: one rank. They swap rows for heads around attention.
  RankExchange* context_ranks = nullptr;
  /// Not null: they gather keys and values instead, and have these chunks (nn/context_exchange.h).
  const ChunkDeal* chunks = nullptr;
  /// The ranks that have different experts of each layer; null: this one has all.
  RankExchange* expert_ranks = nullptr;
  /// In an evaluation: the first so many rows, before tensor ranks divide them, are of samples, and
  /// the choices of their tokens count. 0: none does.
  int64_t counted_rows = 0;

  /// Returns what positions of this rank's rows count from; empty: the begin of a sequence.
  ConstView starts_of_rows() const { return row_starts.empty() ? document_starts : row_starts; }
  /// Whether sums over what tensor ranks divide have partial results.
  bool divides_sums() const { return tensor_ranks != nullptr || tensor_parts > 1; }
  /// Returns the type of the partial results of a sum that is rounded to `type`.
  DType partial_type(DType type) const {
    return type == DType::bf16 && !sums_in_fp32 && tensor_parts == 1 ? type : DType::f32;
  }
  /// Returns the memory of operands that weight gradients read: that of the forward pass, and that
  /// of the backward pass.
  Arena* memory_of_x() const { return held == nullptr ? saved : held; }
  Arena* memory_of_dy() const { return held == nullptr ? scratch : held; }
  /// Returns the rows of all tensor ranks, of which this one has `own`.
  int64_t rows_of_ranks(int64_t own) const {
    return tensor_ranks == nullptr ? own : own * tensor_ranks->ranks();
  }
  /// Returns the rows of this rank.
  int64_t own_rows(int64_t of_ranks) const {
    return tensor_ranks == nullptr ? of_ranks : of_ranks / tensor_ranks->ranks();
  }
};

}  // namespace fp8train
