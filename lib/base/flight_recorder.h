#pragma once
// Records the current and last operations of a rank, for the report about a run that hangs. The
// thread that drives a run writes its recorder, without allocation; any thread may read it. A
// thread without a recorder records nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/not_copied.h"

namespace fp8train {

/// The sections in which a run spends its time.
enum class Section : uint8_t {
  none,
  start_up,
  data,
  step,
  exchange,
  evaluation,
  sample,
  save,
  end
};
inline constexpr size_t kSections = 9;
/// Returns the section's name, such as "start_up".
const char* name_of(Section section);

/// Seconds by section.
using SectionSeconds = std::array<double, kSections>;

/// A collective. Times are nanoseconds of the monotonic clock; ended is 0 while nobody has seen its
/// end.
struct FlightOperation {
  std::array<char, 16> name = {};  ///< up to 15 characters
  uint64_t communicator = 0;       ///< counts the communicators of this process
  uint64_t sequence = 0;  ///< counts the collectives of that communicator; messages count apart
  uint64_t bytes = 0;
  uint64_t step = 0;
  uint64_t begun = 0, ended = 0;
};

/// A copy of a recorder.
struct FlightState {
  static constexpr size_t kOperations = 64;

  uint64_t step = 0;
  uint64_t changes = 0;  ///< grows with each section, step, advance and wait
  Section section = Section::none;
  uint64_t section_begun = 0;  ///< or when it last made progress
  uint64_t waiting = 0;        ///< 1 + the operation whose end the rank waits for; 0: none
  uint64_t waiting_since = 0;
  uint64_t limit = 0;       ///< nanoseconds that this may take; 0: any time
  uint64_t operations = 0;  ///< recorded so far; the last kOperations are in `ring`
  std::array<FlightOperation, kOperations> ring = {};

  /// The section: exchange in a step that waits for other ranks.
  Section where() const;
  /// Seconds since the rank last made progress, or since its wait began.
  double seconds() const;
  /// Returns the operation whose end the rank waits for. Null if it waits for none, or if the ring
  /// no longer has it.
  const FlightOperation* waits_for() const;
};

/// The recorder of one rank.
class FlightRecorder : NotCopied {
 public:
  FlightRecorder();
  ~FlightRecorder() = default;

  /// Sets the seconds that a section may take without progress; 0: any time. Must be called before
  /// the recorder is used.
  void set_limits(const SectionSeconds& limits) { limits_ = limits; }
  double limit(Section section) const { return limits_[static_cast<size_t>(section)]; }

  /// Returns a copy. Any thread may call it.
  FlightState read() const;
  /// Returns the state at the last wait that ended in an exception (keep_failed_state()).
  const std::optional<FlightState>& failed_state() const { return failed_; }

  // Called by the thread that drives the run.
  /// Notes the number of the step that begins, and progress.
  void begin_step(int64_t step);
  /// Enters a section. Returns the one before, which a later call of go_back() takes.
  Section enter(Section section);
  void go_back(Section before);
  /// Notes that the section made progress: its time starts again.
  void advance();
  Section section() const { return section_; }
  uint64_t step() const { return state_.step; }
  /// Returns a number for begin_wait() and end_wait().
  uint64_t begin_operation(const char* name, uint64_t communicator, uint64_t sequence,
                           uint64_t bytes);
  /// Notes the end of an operation; does nothing if the ring no longer has it.
  void end_operation(uint64_t operation);
  /// The rank waits for the end of `operation` from now on. `limit` is in seconds; 0: any time.
  void begin_wait(uint64_t operation, double limit);
  void end_wait();
  /// Called before end_wait() if the wait ended in an exception: stores failed_state().
  void keep_failed_state() { failed_ = read(); }
  /// Seconds by section since the last call; waiting for other ranks is exchange.
  SectionSeconds take_seconds();

  /// Called at the start of each section and step, and of each wait of a step as Section::exchange,
  /// by the thread that drives the run. For tests that inject faults; null: nothing.
  using Observer = void (*)(Section section, int64_t step);
  static void set_observer(Observer observer);

 private:
  void add_time_to(Section section);
  void change_section(Section section);
  void begin_section(uint64_t now);
  FlightOperation& slot(uint64_t operation) {
    return state_.ring[operation % FlightState::kOperations];
  }

  mutable std::mutex mutex_;  // protects what the driving thread changes of state_
  FlightState state_;
  SectionSeconds limits_ = {};
  std::optional<FlightState> failed_;
  Section section_ = Section::none;
  SectionSeconds seconds_ = {};
  uint64_t timed_until_ = 0;
};

/// Sets the recorder of the calling thread; null: none. The recorder must outlive its use.
void record_flight(FlightRecorder* recorder);
/// Returns the recorder of the calling thread, or null.
FlightRecorder* flight_recorder();

/// The calling thread is in the section as long as this object lives. Does nothing on a thread
/// without a recorder.
class SectionScope : NotCopied {
 public:
  explicit SectionScope(Section section) : recorder_(flight_recorder()) {
    if (recorder_ != nullptr) {
      before_ = recorder_->enter(section);
    }
  }
  ~SectionScope() {
    if (recorder_ != nullptr) {
      recorder_->go_back(before_);
    }
  }

 private:
  FlightRecorder* recorder_;
  Section before_ = Section::none;
};

/// Notes that the calling thread's section made progress.
inline void section_advances() {
  if (FlightRecorder* recorder = flight_recorder()) {
    recorder->advance();
  }
}

}  // namespace fp8train
