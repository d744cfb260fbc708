#pragma once
// A function that is called at the end of a scope, also if an exception ends it.

#include <utility>

#include "base/not_copied.h"

namespace fp8train {

template <class Function>
class OnExit : NotCopied {
 public:
  explicit OnExit(Function function) : function_(std::move(function)) {}
  ~OnExit() { function_(); }

 private:
  Function function_;
};

}  // namespace fp8train
