#pragma once
// The gradient of a table of embeddings that the first pipeline stage and the last one share: each
// has a sum of its own over the micro-batches of a step, and both get the sum of the two. The rest
// of the step treats the table as any other parameter, so that both update it to the same bits.

#include <cstddef>

#include "comm/communicator.h"
#include "device/device.h"
#include "nn/context.h"
#include "nn/parameter.h"

namespace fp8train {

/// Listens to the last backward pass of a step. The listener of the strategy gets the same calls,
/// but learns of the table's gradient in finish().
class TiedTable final : public GradientListener {
 public:
  /// `table`: the first parameter of its store. `stages`: the communicator of Group::pipe, of which
  /// this rank is the first or the last; both outlive it. At most `piece_bytes` are under way.
  TiedTable(Device& device, Communicator& stages, const Parameter& table, int64_t piece_bytes);

  /// Called before the pass. `next`: null where nobody listens.
  GradientListener* begin(GradientListener* next);
  void gradients_complete(size_t begin, size_t end) override;
  void progress() override;
  /// Called after the pass, whose result has been sent. Waits for the other stage.
  void finish();

 private:
  Device* device_;
  Communicator* stages_;
  const Parameter* table_;
  Tensor received_;
  GradientListener* next_ = nullptr;
  size_t end_ = 0;  ///< the parameters before it are complete but for the other stage's part
};

}  // namespace fp8train
