#pragma once
// What every timeline that the program writes has to be, by the format's description alone.

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace fp8train::test {

struct TimelineContent {
  std::set<int> ranks;
  std::map<std::string, int> spans;    ///< how often each name occurs
  std::map<std::string, int> flights;  ///< exchanges, gathers and messages
};

/// Requires that each rank names its tracks, that events begin before they end, that the spans of a
/// rank lie inside their parents, and that no two events of another track overlap.
TimelineContent check_timeline(const nlohmann::json& timeline);

}  // namespace fp8train::test
