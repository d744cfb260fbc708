#pragma once
// The parts of a training step. The spans around them take their names from here, and so does
// everything that looks for these spans.

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/names.h"

namespace fp8train {

/// A part of a training step, in the order of the step.
enum class StepPart : uint8_t {
  start,     ///< learning rate, zeros
  forward,   ///< forward pass without the head
  head,      ///< logits and loss, forward and backward
  backward,  ///< backward pass without the head
  rest,      ///< of micro-batches: their tokens, scales; it has no span
  update,    ///< optimizer, and the weights for the next step
};
inline constexpr std::pair<StepPart, std::string_view> kStepParts[] = {
    {StepPart::start, "start"},       {StepPart::forward, "forward"}, {StepPart::head, "head"},
    {StepPart::backward, "backward"}, {StepPart::rest, "rest"},       {StepPart::update, "update"}};

/// Returns the name of a part, for a TraceSpan too.
constexpr const char* name_of(StepPart part) {
  return name_in(kStepParts, part).data();  // a literal
}

}  // namespace fp8train
