#include "timeline_checks.h"

#include <catch2/catch.hpp>
#include <utility>
#include <vector>

namespace fp8train::test {

TimelineContent check_timeline(const nlohmann::json& timeline) {
  constexpr double kRounded = 0.0021;  // microseconds; ts and dur are rounded to a thousandth each
  TimelineContent content;
  std::map<std::pair<int, int>, std::vector<double>> open;  // ends, by process and track
  std::map<std::pair<int, int>, std::string> tracks;
  for (const nlohmann::json& event : timeline.at("traceEvents")) {
    const int rank = event.at("pid");
    const std::pair<int, int> track = {rank, event.at("tid")};
    const std::string name = event.at("name");
    if (event.at("ph") == "M") {
      if (name == "thread_name") {
        tracks[track] = event.at("args").at("name");
      }
      continue;
    }
    CAPTURE(event.dump());
    REQUIRE(event.at("ph") == "X");
    REQUIRE(tracks.count(track) == 1);
    const double begin = event.at("ts");
    const double end = begin + event.at("dur").get<double>();
    REQUIRE(begin >= 0);
    REQUIRE(end >= begin);
    std::vector<double>& ends = open[track];
    while (!ends.empty() && ends.back() <= begin + kRounded) {
      ends.pop_back();
    }
    const bool is_span = event.at("cat") == "span";
    CHECK(is_span == (tracks[track] == "step"));
    if (is_span) {
      CHECK((ends.empty() ? name == "step" : end <= ends.back() + kRounded));
    } else {
      CHECK(ends.empty());
    }
    ends.push_back(end);
    content.ranks.insert(rank);
    ++(is_span ? content.spans : content.flights)[name];
  }
  return content;
}

}  // namespace fp8train::test
