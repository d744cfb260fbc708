#pragma once
// The residual stream between the layers of a model, [rows, width]. The norm that follows a layer
// adds its result to the stream, since it reads both anyway. Does not own memory.

#include "tensor/view.h"

namespace fp8train {

struct Residual {
  View x;
  View branch;  ///< like x: layers write the addend of x here
  View sum;     ///< the next norm writes x + branch here, may be x; empty: nothing is to be added

  bool is_due() const { return !sum.empty(); }
  /// The stream, once a pending addition has been made.
  const View& value() const { return is_due() ? sum : x; }
  /// Returns the stream after a layer has read value() and written the branch: the next norm adds
  /// the branch, into `to`.
  Residual plus_branch(const View& to) const { return {value(), branch, to}; }
};

}  // namespace fp8train
