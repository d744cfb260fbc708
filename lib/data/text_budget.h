#pragma once
// The bound of texts that are held in memory as a whole, as a run does with text files: a
// compressed file may be thousands of times as long as it is on the disk. What only passes through
// (`data prepare`, `data inspect`) needs no bound.

#include <cstdint>
#include <string>

namespace fp8train {

/// Counts bytes of text that are held against half of the memory that was available at the
/// beginning; the rest is for their ids. Available is what the system, the control group and
/// `ulimit -v` leave.
class TextBudget {
 public:
  TextBudget();
  explicit TextBudget(uint64_t most) : most_(most) {}

  /// Counts `bytes` of text more. `where`, usually a file, begins the DataError that is thrown
  /// beyond the bound. `file_bytes`, if it is not 0: the bytes of the compressed file that all the
  /// text comes from; then more than 1 GiB that is 200 times as long is refused, too, which is no
  /// text but a file made to exhaust a reader.
  void add(uint64_t bytes, const std::string& where, uint64_t file_bytes = 0);

 private:
  uint64_t most_;
  uint64_t held_ = 0;
};

}  // namespace fp8train
