#include "engine/tied_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "model/step_part.h"
#include "ops/pointwise/elementwise.h"

namespace fp8train {

TiedTable::TiedTable(Device& device, Communicator& stages, const Parameter& table,
                     int64_t piece_bytes)
    : device_(&device), stages_(&stages), table_(&table) {
  check(!table.gradient.empty(), "the gradient of a table is in fp32");
  const auto piece = std::max<int64_t>(1, piece_bytes / static_cast<int64_t>(sizeof(float)));
  received_ = Tensor(device, DType::f32, {std::min(piece, table.shape.count())},
                     MemoryCategory::communication);
}

GradientListener* TiedTable::begin(GradientListener* next) {
  next_ = next;
  end_ = 0;
  return this;
}

void TiedTable::gradients_complete(size_t begin, size_t end) {
  if (begin == 0 && end > 0) {
    end_ = end;
  } else if (next_ != nullptr) {
    next_->gradients_complete(begin, end);
  }
}

void TiedTable::progress() {
  if (next_ != nullptr) {
    next_->progress();
  }
}

void TiedTable::finish() {
  const TraceSpan span(name_of(StepPart::update));  // once in a step
  const int other = stages_->rank() == 0 ? stages_->size() - 1 : 0;
  const int64_t count = table_->shape.count();
  const int64_t piece = received_.view().count();
  for (int64_t first = 0; first < count; first += piece) {
    const Shape shape = {std::min(piece, count - first)};
    const View own = {table_->gradient.as<float>() + first, DType::f32, shape};
    const View of_other = {received_.view().data, DType::f32, shape};
    const Message messages[] = {
        {.peer = other, .sends = true, .data = own.data, .bytes = own.bytes()},
        {.peer = other, .data = of_other.data, .bytes = own.bytes()}};
    stages_->exchange(device_->stream(), messages).wait();
    ops::add(device_->stream(), own, of_other, own);
  }
  if (next_ != nullptr) {
    next_->gradients_complete(0, end_);
  }
}

}  // namespace fp8train
