#pragma once
// What a person sees while a run goes on: one line that renews itself on a terminal, plain lines
// otherwise (Slurm logs, pipes).

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "config/settings.h"

namespace fp8train {

struct ProgressReport {
  int64_t step = 0;  ///< done
  int64_t max_steps = 0;
  double loss = 0;
  double lr = 0;
  double gradient_norm = 0;
  double tokens_per_second = 0;
  double seconds_per_step = 0;
  size_t memory_bytes = 0;
  int64_t skipped_steps = 0;
  bool has_scaling = false;  ///< FP8 plans: the next two are shown
  double saturated_percent = 0;
  double underflow_percent = 0;
};

/// "step 120/2000 | loss 3.4121 | lr 2.9e-04 | grad norm 0.81 | 18.2k tok/s | mem 21 MiB | fp8 sat
/// 0.00% under 0.12% | eta 1m 42s"
std::string describe(const ProgressReport& report);

/// "1h 02m", "3m 05s", "12s"
std::string describe_duration(double seconds);

/// "18.2k", "1.05M"
std::string describe_count(double count);

/// "21.4 MiB"
std::string describe_bytes(double bytes);

class Progress {
 public:
  enum class Style { pretty, plain, quiet };  ///< quiet: the log file only

  /// Writes to `out` (not owned), and every line also to the end of the file `log`, if it has a
  /// name. Where `out` cannot be written (a closed pipe, a full disk), a warning says so once and
  /// the log continues alone. It does not stop the run.
  Progress(Style style, std::FILE* out, const std::filesystem::path& log);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const ProgressReport& report);
  /// A line of its own above the progress line.
  void say(const std::string& line);
  /// Ends the renewed line.
  void finish();

 private:
  void print(const std::string& text);

  Style style_;
  std::FILE* out_;
  std::ofstream log_;
  bool line_open_ = false;
};

/// What `format` means for a stream.
Progress::Style progress_style(ProgressFormat format, std::FILE* out);

}  // namespace fp8train
