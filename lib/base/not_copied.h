#pragma once
// The base of classes of which there are no copies.

namespace fp8train {

class NotCopied {
 public:
  NotCopied() = default;
  NotCopied(const NotCopied&) = delete;
  NotCopied& operator=(const NotCopied&) = delete;

 protected:
  ~NotCopied() = default;
};

}  // namespace fp8train
