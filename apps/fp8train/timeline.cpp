#include "timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "base/atomic_file.h"
#include "base/error.h"
#include "comm/exchange/gradient_exchange.h"
#include "model/step_part.h"
#include "parallel/gradient_buckets.h"
#include "train/ranks.h"

namespace fp8train {
namespace {

struct Interval {
  double begin, end;
};

/// The time that at least one of them covers: apart from each other, in order.
std::vector<Interval> covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> all;
  for (const Interval& next : intervals) {
    if (all.empty() || next.begin > all.back().end) {
      all.push_back(next);
    } else {
      all.back().end = std::max(all.back().end, next.end);
    }
  }
  return all;
}

/// Both as covered() leaves them.
std::vector<Interval> common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Interval overlap = {std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (overlap.begin < overlap.end) {
      both.push_back(overlap);
    }
    (a[i].end < b[j].end ? i : j) += 1;
  }
  return both;
}

double seconds_of(const std::vector<Interval>& intervals) {
  double sum = 0;
  for (const Interval& interval : intervals) {
    sum += interval.end - interval.begin;
  }
  return sum;
}

/// Empty name: all of the kind.
std::vector<Interval> covered_by(const std::vector<TraceEvent>& events, TraceKind kind,
                                 std::string_view name) {
  std::vector<Interval> intervals;
  for (const TraceEvent& event : events) {
    if (event.kind == kind && (name.empty() || name == event.name)) {
      intervals.push_back({event.begin, event.end});
    }
  }
  return covered(std::move(intervals));
}

/// Adds what subtracted from each rank's clock makes one clock of them, which starts with the first
/// event of all ranks.
double clock_origin(Communicator& comm, const std::vector<TraceEvent>& events) {
  comm.barrier().wait();
  const std::vector<double> left = comm.all_gather_values(trace_clock());
  const double shift = left[static_cast<size_t>(comm.topology().ranks_of_node(comm.node())[0])];
  double first = std::numeric_limits<double>::max();
  for (const TraceEvent& event : events) {
    first = std::min(first, event.begin - shift);
  }
  const std::vector<double> firsts = comm.all_gather_values(first);
  return shift + *std::min_element(firsts.begin(), firsts.end());
}

/// One rank's part of the file: lines of JSON objects with a comma after each.
class RankTimeline {
 public:
  RankTimeline(int rank, int node, double origin) : rank_(rank), origin_(origin) {
    describe("process_name", 0, fmt::format(R"("name":"rank {} on node {}")", rank, node));
    describe("process_sort_index", 0, fmt::format(R"("sort_index":{})", rank));
  }

  void add(std::vector<TraceEvent> events) {
    // Parents before what they hold.
    std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    name_track(0, kStepSpan);
    add_spans(events);
    add_flights(events, TraceKind::exchange, "in flight");
    add_flights(events, TraceKind::message, "messages");
  }

  const std::string& text() const { return text_; }

 private:
  void describe(const char* what, int track, const std::string& argument) {
    text_ += fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}},)", rank_,
                         track, what, argument);
    text_ += '\n';
  }

  void name_track(int track, std::string_view name) {
    describe("thread_name", track, fmt::format(R"("name":"{}")", name));
    describe("thread_sort_index", track, fmt::format(R"("sort_index":{})", track));
  }

  void add_event(const TraceEvent& event, int track, const char* category) {
    const auto microseconds = [](double seconds) { return 1e6 * seconds; };
    text_ += fmt::format(
        R"({{"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}","ts":{:.3f},"dur":{:.3f})", rank_,
        track, category, event.name, microseconds(event.begin - origin_),
        microseconds(event.end - event.begin));
    text_ += event.bytes == 0 ? "}" : fmt::format(R"(,"args":{{"bytes sent":{}}}}})", event.bytes);
    text_ += ",\n";
  }

  void add_spans(const std::vector<TraceEvent>& events) {
    for (const TraceEvent& event : events) {
      if (event.kind == TraceKind::span) {
        add_event(event, 0, "span");
      }
    }
  }

  /// Adds as many tracks as there are flights under way at the same time.
  void add_flights(const std::vector<TraceEvent>& events, TraceKind kind, const char* name) {
    const int first = tracks_;
    std::vector<double> ends;
    for (const TraceEvent& event : events) {
      if (event.kind != kind) {
        continue;
      }
      const auto free =
          std::find_if(ends.begin(), ends.end(), [&](double end) { return end <= event.begin; });
      const auto at = static_cast<int>(free - ends.begin());
      if (free == ends.end()) {
        ends.push_back(event.end);
        name_track(first + at, fmt::format("{} {}", name, at + 1));
      } else {
        *free = event.end;
      }
      add_event(event, first + at, name);
    }
    tracks_ += static_cast<int>(ends.size());
  }

  int rank_;
  double origin_;
  int tracks_ = 1;
  std::string text_;
};

}  // namespace

StepTimes step_times(const std::vector<TraceEvent>& events) {
  const auto count =
      static_cast<double>(std::count_if(events.begin(), events.end(), [](const TraceEvent& event) {
        return event.kind == TraceKind::span && std::string_view(event.name) == kStepSpan;
      }));
  const std::vector<Interval> steps = covered_by(events, TraceKind::span, kStepSpan);
  const auto whole = [&](TraceKind kind, std::string_view name) {
    return common(covered_by(events, kind, name), steps);
  };
  const auto per_step = [&](const std::vector<Interval>& intervals) {
    return count == 0 ? 0.0 : seconds_of(intervals) / count;
  };
  const std::vector<Interval> backward = whole(TraceKind::span, name_of(StepPart::backward));
  const std::vector<Interval> exchange = whole(TraceKind::exchange, kExchangeFlight);
  const std::vector<Interval> messages = whole(TraceKind::message, "");
  const std::vector<Interval> waited = whole(TraceKind::span, kFinishExchangeSpan);
  StepTimes times;
  times.forward = per_step(whole(TraceKind::span, name_of(StepPart::forward)));
  times.head = per_step(whole(TraceKind::span, name_of(StepPart::head)));
  times.backward = per_step(backward);
  times.update = per_step(whole(TraceKind::span, name_of(StepPart::update)));
  times.exchange = per_step(exchange);
  times.exchange_in_backward = per_step(common(exchange, backward));
  times.exchange_waited = per_step(waited) - per_step(common(waited, backward));
  times.messages = per_step(messages);
  times.messages_in_backward = per_step(common(messages, backward));
  return times;
}

void check_timeline_path(Communicator& comm, const std::filesystem::path& path) {
  const bool leads = comm.rank() == 0;
  std::error_code unseen;  // a folder above may not be read
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (comm.any_rank(leads && !std::filesystem::is_directory(folder, unseen))) {
    throw ConfigError(fmt::format("--timeline: there is no folder '{}'", folder.string()));
  }
  if (comm.any_rank(leads && (is_stream(path) || !why_not_replaced(path).empty()))) {
    throw ConfigError(fmt::format("--timeline: '{}' exists and is not a file", path.string()));
  }
}

void write_timeline(Communicator& comm, const std::filesystem::path& path,
                    const std::vector<TraceEvent>& events) {
  RankTimeline own(comm.rank(), comm.node(), clock_origin(comm, events));
  own.add(events);
  std::string lines;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::string text = text_of_rank(comm, own.text(), rank);
    lines += comm.rank() == 0 ? text : "";
  }
  if (comm.rank() == 0) {
    lines.resize(lines.size() - 2);  // the last comma
    write_file_atomically(path,
                          "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + lines + "\n]}\n");
  }
}

}  // namespace fp8train
