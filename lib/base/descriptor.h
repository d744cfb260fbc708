#pragma once
// A file descriptor with one owner.

#include <unistd.h>

#include <utility>

namespace fp8train {

/// Closes what it holds when it is destroyed. Movable.
class Descriptor {
 public:
  Descriptor() = default;
  /// `number`: -1: none.
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  bool is_open() const { return number_ >= 0; }
  int get() const { return number_; }
  /// Returns false, with errno, where the system reports an error.
  bool close() { return !is_open() || ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_ = -1;
};

}  // namespace fp8train
