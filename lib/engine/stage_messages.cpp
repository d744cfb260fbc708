#include "engine/stage_messages.h"

#include <utility>

#include "base/trace.h"

namespace fp8train {

StageMessages::StageMessages(Device& device, Communicator& stages, int chunks, const View& boundary,
                             const StageMemory& memory)
    : device_(&device),
      stages_(&stages),
      chunks_(chunks),
      in_stream_order_(stages.in_stream_order()) {
  for (const auto& [slots, count] : {std::pair(&x_, memory.x),
                                     {&y_, memory.y},
                                     {&outputs_, memory.outputs},
                                     {&gradients_, memory.gradients}}) {
    slots->resize(static_cast<size_t>(count));
    for (Slot& slot : *slots) {
      slot.memory =
          Tensor(device, boundary.dtype, boundary.shape, MemoryCategory::saved_activations);
    }
  }
}

StageMessages::Slot& StageMessages::input_slot(const StageAction& action) {
  Slots& slots = action.action.kind == ActionKind::forward ? x_ : gradients_;
  return slots.at(static_cast<size_t>(action.input));
}

StageMessages::Slot& StageMessages::result_slot(const StageAction& action) {
  if (action.action.kind == ActionKind::backward) {
    return input_slot(action);
  }
  Slots& slots = is_last_part(action.action) ? outputs_ : y_;
  return slots.at(static_cast<size_t>(action.output));
}

/// Streams come from the stage before and go to the one after; gradients go the other way.
Message StageMessages::message(const PipelineAction& action, bool sends, const View& data) const {
  const int stages = stages_->size();
  const bool to_next = (action.kind == ActionKind::forward) == sends;
  return {.peer = (stages_->rank() + (to_next ? 1 : stages - 1)) % stages,
          .sends = sends,
          .data = data.data,
          .bytes = data.bytes()};
}

void StageMessages::receive(const std::vector<StageAction>& actions,
                            std::span<const size_t> readers) {
  for (const size_t reader : readers) {
    Slot& slot = input_slot(actions[reader]);
    const Message wanted = message(actions[reader].action, false, slot.memory);
    if (in_stream_order_) {
      queued_.push_back(wanted);
      continue;
    }
    const double begun = trace_clock();
    slot.sent.wait();
    count_wait(begun);
    slot.received = stages_->exchange(device_->stream(), {&wanted, 1});
  }
}

View StageMessages::input(const StageAction& action) {
  const TraceSpan span("wait_for_stage");
  const double begun = trace_clock();
  start_queued();
  if (action.input < 0) {
    return {};
  }
  Slot& slot = input_slot(action);
  slot.sent.wait();
  slot.received.wait();
  count_wait(begun);
  return slot.memory;
}

View StageMessages::output(const StageAction& action) {
  const double begun = trace_clock();
  start_queued();
  Slot& slot = result_slot(action);
  slot.sent.wait();
  count_wait(begun);
  return slot.memory;
}

void StageMessages::send(const StageAction& action) {
  const bool is_forward = action.action.kind == ActionKind::forward;
  if (action.action.kind == ActionKind::weight_gradient ||
      (is_forward ? is_last_part(action.action) : is_first_part(action.action))) {
    return;
  }
  Slot& slot = result_slot(action);
  const Message result = message(action.action, true, slot.memory);
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
  const double begun = trace_clock();
  start_queued();
  for (Slots* slots : {&x_, &y_, &outputs_, &gradients_}) {
    for (Slot& slot : *slots) {
      slot.received.wait();
      slot.sent.wait();
    }
  }
  if (counts_ && !in_stream_order_) {
    stages_->barrier().wait();
  }
  count_wait(begun);
}

void StageMessages::count_wait(double begun) {
  waited_ += counts_ ? trace_clock() - begun : 0.0;
}

double StageMessages::take_waited() {
  return std::exchange(waited_, 0.0);
}

}  // namespace fp8train
