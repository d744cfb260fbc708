#pragma once
// Calls of a meta stream that stand for several alike.

#include <cstddef>
#include <cstdint>

#include "device/stream.h"

namespace fp8train {

/// While it lives, each call on a meta stream counts `times` times.
class RepeatedCalls {
 public:
  RepeatedCalls(const Stream& meta, int64_t times);
  ~RepeatedCalls();
  RepeatedCalls(const RepeatedCalls&) = delete;
  RepeatedCalls& operator=(const RepeatedCalls&) = delete;

 private:
  Stream stream_;
  int64_t times_;
  OpCounters before_;
  size_t logged_before_ = 0;
};

}  // namespace fp8train
