#pragma once
// Finds the rank that the others wait for: in a logging interval, the rank that has spent the most
// time in its own work.

#include <optional>
#include <vector>

#include "base/flight_recorder.h"

namespace fp8train {

struct Straggler {
  int rank = 0;
  Section section = Section::step;  ///< where it is behind the median of all ranks the most
  double seconds = 0;               ///< that it has worked in the interval, in all sections
  double median_seconds = 0;        ///< that a rank has
};

/// `of_ranks`: seconds by section; those of exchange, the time that a rank waits for others, do not
/// count. Nothing where there is one rank. Of an even number of ranks the
/// median is the lower one.
std::optional<Straggler> find_straggler(const std::vector<SectionSeconds>& of_ranks);

}  // namespace fp8train
