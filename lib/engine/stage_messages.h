#pragma once
// A pipeline stage exchanges two tensors with each neighbour: the residual stream that enters or
// leaves its blocks, and its gradient. StageMessages owns the memory of these tensors, in which
// passes read and write them. Sends are started at once; a receive is started by receive(). The
// chunks of stages follow one another in a circle: after the last stage comes the next chunk of the
// first one.

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/stage_plan.h"
#include "tensor/tensor.h"

namespace fp8train {

class StageMessages {
 public:
  /// `stages`: the communicator of Group::pipe, which outlives it. `boundary`: type and shape of
  /// the residual stream. `chunks`: of each stage.
  StageMessages(Device& device, Communicator& stages, int chunks, const View& boundary,
                const StageMemory& memory);

  /// Begins the actions of a step or of an evaluation. `counts`: whether take_waited() has its
  /// waits.
  void begin(bool counts) { counts_ = counts; }
  /// Starts to receive what some of the actions read, which others send.
  void receive(const std::vector<StageAction>& actions, std::span<const size_t> readers);
  /// Returns what an action reads, once it is there. In the backward pass of the last part it is
  /// memory for the gradient. Empty for an action that reads nothing of others.
  View input(const StageAction& action);
  /// Returns memory for the result of a forward pass. A backward pass leaves its result in its
  /// input.
  View output(const StageAction& action);
  /// Sends the result of an action to the stage that reads it, if there is one.
  void send(const StageAction& action);
  /// Waits for what is under way and, where waits count, until all stages are here.
  void finish();

  /// Returns the seconds in which the host has waited for other stages since the last call.
  double take_waited();

 private:
  struct Slot {
    Tensor memory;
    Work received, sent;
  };
  using Slots = std::vector<Slot>;
  bool is_first_part(const PipelineAction& action) const {
    return stages_->rank() == 0 && action.chunk == 0;
  }
  bool is_last_part(const PipelineAction& action) const {
    return stages_->rank() + 1 == stages_->size() && action.chunk + 1 == chunks_;
  }
  Slot& input_slot(const StageAction& action);
  Slot& result_slot(const StageAction& action);
  Message message(const PipelineAction& action, bool sends, const View& data) const;
  void start_queued();
  void count_wait(double begun);

  Device* device_;
  Communicator* stages_;
  int chunks_;
  Slots x_, y_, outputs_, gradients_;
  /// Where communicators work in the order of the stream, a message waits for all before it: the
  /// result of an action is sent and inputs received by one call, or two stages that send to each
  /// other would wait forever.
  bool in_stream_order_;
  std::vector<Message> queued_;
  Work last_;
  bool counts_ = false;
  double waited_ = 0;
};

}  // namespace fp8train
