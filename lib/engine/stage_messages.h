#pragma once
// A pipeline stage exchanges two tensors with each neighbour: the residual stream that enters or
// leaves its blocks, and its gradient. StageMessages owns the memory of these tensors, in which
// passes read and write them. Sends are started at once; a receive is started by expect().

#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "parallel/pipeline_schedule.h"
#include "tensor/tensor.h"

namespace fp8train {

class StageMessages {
 public:
  /// `stages`: the communicator of Group::pipe, which outlives it. `boundary`: type and shape of
  /// the residual stream. `held`: most micro-batches between forward and backward.
  StageMessages(Device& device, Communicator& stages, const View& boundary, int64_t held);

  /// Starts to receive what an action reads from a neighbour, if it does. Called once for each
  /// action, in the order of actions; of the next one before the present one computes.
  void expect(const PipelineAction& action);
  /// Returns what an action reads, once it is there. In the backward pass of the last stage it is
  /// memory for the gradient. Empty in the forward pass of the first stage.
  View input(const PipelineAction& action);
  /// Returns memory for the result of a forward pass. It holds that until `held` further ones in
  /// the last stage. A backward pass leaves its result in its input.
  View output(const PipelineAction& action);
  /// Sends the result of an action to the neighbour that reads it, if there is one.
  void send(const PipelineAction& action);
  /// Waits for what is under way.
  void finish();

 private:
  struct Slot {
    Tensor memory;
    Work received, sent;
  };
  using Ring = std::vector<Slot>;
  static Slot& at(Ring& ring, const PipelineAction& action) {
    return ring[static_cast<size_t>(action.micro_batch) % ring.size()];
  }
  bool is_first() const { return stages_->rank() == 0; }
  bool is_last() const { return stages_->rank() + 1 == stages_->size(); }
  /// Whether a neighbour has the input of an action, or reads its result.
  bool receives(const PipelineAction& action) const;
  bool sends(const PipelineAction& action) const;
  Message message(const PipelineAction& action, bool sends, const View& data) const;
  void start_queued();

  Device* device_;
  Communicator* stages_;
  Ring x_, y_, gradients_;
  /// Where communicators work in the order of the stream, a message waits for all before it: the
  /// result of an action is sent and the input of the next one received by one call, or two stages
  /// that send to each other would wait forever.
  bool in_stream_order_;
  std::vector<Message> queued_;
  Work last_;
};

}  // namespace fp8train
