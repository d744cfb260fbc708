#include "engine/stage_messages.h"

namespace fp8train {

StageMessages::StageMessages(Device& device, Communicator& stages, const View& boundary,
                             int64_t held)
    : device_(&device), stages_(&stages), in_stream_order_(stages.in_stream_order()) {
  constexpr size_t kAlternate = 2;  // one is sent while the next one is made
  const auto in_flight = static_cast<size_t>(held);
  // An input may come while the backward pass that frees a micro-batch is still to run.
  x_.resize(is_first() ? 0 : in_flight + 1);
  y_.resize(is_last() ? in_flight : kAlternate);
  gradients_.resize(kAlternate);
  for (Ring* ring : {&x_, &y_, &gradients_}) {
    for (Slot& slot : *ring) {
      slot.memory =
          Tensor(device, boundary.dtype, boundary.shape, MemoryCategory::saved_activations);
    }
  }
}

bool StageMessages::receives(const PipelineAction& action) const {
  return action.kind == ActionKind::forward ? !is_first() : !is_last();
}

bool StageMessages::sends(const PipelineAction& action) const {
  return action.kind == ActionKind::forward ? !is_last() : !is_first();
}

/// Streams come from the stage before and go to the one after; gradients go the other way.
Message StageMessages::message(const PipelineAction& action, bool sends, const View& data) const {
  const bool to_next = (action.kind == ActionKind::forward) == sends;
  return {.peer = stages_->rank() + (to_next ? 1 : -1),
          .sends = sends,
          .data = data.data,
          .bytes = data.bytes()};
}

void StageMessages::expect(const PipelineAction& action) {
  if (!receives(action)) {
    return;
  }
  Slot& slot = at(action.kind == ActionKind::forward ? x_ : gradients_, action);
  const Message wanted = message(action, false, slot.memory);
  if (in_stream_order_) {
    queued_.push_back(wanted);
    return;
  }
  slot.sent.wait();
  slot.received = stages_->exchange(device_->stream(), {&wanted, 1});
}

View StageMessages::input(const PipelineAction& action) {
  const bool is_forward = action.kind == ActionKind::forward;
  if (is_forward && is_first()) {
    return {};
  }
  start_queued();
  Slot& slot = at(is_forward ? x_ : gradients_, action);
  slot.sent.wait();
  slot.received.wait();
  return slot.memory;
}

View StageMessages::output(const PipelineAction& action) {
  start_queued();
  Slot& slot = at(y_, action);
  slot.sent.wait();
  return slot.memory;
}

void StageMessages::send(const PipelineAction& action) {
  if (!sends(action)) {
    return;
  }
  Slot& slot = at(action.kind == ActionKind::forward ? y_ : gradients_, action);
  const Message result = message(action, true, slot.memory);
  if (in_stream_order_) {
    queued_.push_back(result);
    return;
  }
  slot.sent = stages_->exchange(device_->stream(), {&result, 1});
}

void StageMessages::start_queued() {
  if (!queued_.empty()) {
    last_ = stages_->exchange(device_->stream(), queued_);
    queued_.clear();
  }
  last_.wait();
}

void StageMessages::finish() {
  start_queued();
  for (Ring* ring : {&x_, &y_, &gradients_}) {
    for (Slot& slot : *ring) {
      slot.received.wait();
      slot.sent.wait();
    }
  }
}

}  // namespace fp8train
