#pragma once
// Calls of a meta stream that stand for several alike.

#include <cstddef>
#include <cstdint>

#include "base/not_copied.h"
#include "device/stream.h"

namespace fp8train {

/// Adds the counts between two points, `times` times.
void add_times(OpCounters& total, const OpCounters& from, const OpCounters& to, int64_t times);

/// While it lives, each call on a meta stream counts `times` times.
class RepeatedCalls : NotCopied {
 public:
  RepeatedCalls(const Stream& meta, int64_t times);
  ~RepeatedCalls();

 private:
  Stream stream_;
  int64_t times_;
  OpCounters before_;
  size_t logged_before_ = 0;
};

}  // namespace fp8train
