#pragma once
// Finds the rank that the others wait for: in a logging interval, the rank that has spent the most
// time in its own work.

#include <optional>
#include <vector>

#include "base/flight_recorder.h"

namespace fp8train {

/// The slowest rank of an interval.
struct Straggler {
  int rank = 0;
  Section section = Section::step;  ///< it is furthest behind the median of all ranks here
  double seconds = 0;               ///< seconds that it has worked in the interval, in all sections
  double median_seconds = 0;        ///< the median of these seconds over all ranks
};

/// Finds the slowest rank. `of_ranks` has the seconds of each rank by section; those of exchange,
/// in which a rank waits for others, do not count. Returns nothing if there is one rank. Of an even
/// number of ranks the median is the lower one.
std::optional<Straggler> find_straggler(const std::vector<SectionSeconds>& of_ranks);

}  // namespace fp8train
