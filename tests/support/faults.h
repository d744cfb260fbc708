#pragma once
// Faults on request, for the program that tests run (fp8train_faulty): the shipped program has none
// of this.

#include <cstdint>
#include <string>

#include "base/flight_recorder.h"

namespace fp8train::test {

/// KIND@RANK:STEP[:ARGUMENT]. A fault happens once, in the process of that rank, when it enters the
/// section in that step; steps count from 1, what comes before the first one is step 0.
///
///   stop, hang, kill, exit, throw, oom   ARGUMENT: the section (default step)
///   slow                                 ARGUMENT: SECTION/MILLISECONDS, in each step from this on
///   nan                                  a weight is NaN for the step, and so are gradients
///   flip                                 ARGUMENT: the parameter; a bit of its value changes
struct Fault {
  enum class Kind : uint8_t { stop, hang, kill, exit, throw_, oom, slow, nan, flip };
  Kind kind = Kind::stop;
  int rank = 0;
  int64_t step = 0;
  Section section = Section::step;
  int64_t milliseconds = 0;
  std::string parameter;
};

/// Throws std::invalid_argument.
Fault parse_fault(const std::string& text);

/// One for the life of the process. Says on standard error when it happens.
void inject(const Fault& fault);

}  // namespace fp8train::test
