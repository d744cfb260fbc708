#include "train/records/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "base/append_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "train/records/run_records.h"

namespace fp8train {

std::string describe_count(double count) {
  if (count >= 1e9) {
    return fmt::format("{:.2f}B", count / 1e9);
  }
  if (count >= 1e6) {
    return fmt::format("{:.2f}M", count / 1e6);
  }
  return count >= 1e3 ? fmt::format("{:.1f}k", count / 1e3) : fmt::format("{:.0f}", count);
}

std::string describe_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < std::size(units)) {
    bytes /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || bytes >= 100 ? 0 : 1, units[unit]);
}

std::string describe_duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) {
    return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  }
  return whole >= 60 ? fmt::format("{}m {:02}s", whole / 60, whole % 60)
                     : fmt::format("{}s", whole);
}

namespace {

constexpr double kTickSeconds = 0.2;
constexpr const char* kRenew = "\r\x1b[K";  // begin the line anew

/// The most important first.
std::vector<std::string> fields_of(const StepMetrics& metrics) {
  const auto remaining = static_cast<double>(metrics.max_steps - metrics.step);
  std::vector<std::string> fields = {
      fmt::format("step {}/{}", metrics.step, metrics.max_steps),
      fmt::format("loss {:.4f}", metrics.loss),
      fmt::format("{} tok/s", describe_count(metrics.tokens_per_second)),
      fmt::format("eta {}", describe_duration(remaining * metrics.seconds_per_step)),
      fmt::format("grad norm {:.3f}", metrics.gradient_norm),
      fmt::format("lr {:.2e}", metrics.lr)};
  if (metrics.skipped_steps > 0) {
    fields.insert(fields.begin() + 2, fmt::format("skipped {}", metrics.skipped_steps));
  }
  if (metrics.scaling != nullptr) {
    fields.push_back(fmt::format("{} sat {:.2f}% under {:.2f}%", metrics.scaling->formats,
                                 metrics.scaling->saturated_percent,
                                 metrics.scaling->underflow_percent));
  }
  fields.push_back(
      fmt::format("mem {}", describe_bytes(static_cast<double>(metrics.memory_bytes))));
  return fields;
}

}  // namespace

std::string describe(const StepMetrics& metrics, size_t columns) {
  std::string line;
  for (const std::string& field : fields_of(metrics)) {
    const std::string longer = line.empty() ? field : fmt::format("{} | {}", line, field);
    if (!line.empty() && longer.size() > columns) {
      break;
    }
    line = longer;
  }
  return line;
}

Progress::Progress(Style style, std::FILE* out, const std::filesystem::path& log)
    : style_(style), out_(out), log_path_(log) {
  if (!log.empty()) {
    log_ = open_to_append(log);
  }
}

Progress::~Progress() {
  finish();
  close_file(log_);
}

void Progress::show(const StepMetrics& metrics) {
  // A terminal breaks a line that fills it.
  const size_t columns = style_ == Style::pretty ? terminal_columns(out_) - 1 : kNoColumns;
  put(describe(metrics), describe(metrics, columns));
}

void Progress::tick(int64_t step, int64_t max_steps) {
  if (style_ == Style::pretty && since_tick_.seconds() >= kTickSeconds) {
    since_tick_.restart();
    line_open_ = true;
    print(fmt::format("{}step {}/{}", kRenew, step, max_steps));
  }
}

void Progress::put(const std::string& logged, const std::string& shown) {
  try {
    if (log_ >= 0) {
      append_whole(log_, log_path_, without_controls(logged) + "\n");
    }
  } catch (const DeviceError&) {  // metrics.jsonl, on the same disk, says so
  }
  if (style_ != Style::quiet) {
    const std::string start = line_open_ ? kRenew : "";
    line_open_ = false;
    print(start + without_controls(shown) + "\n");
  }
}

void Progress::finish() {
  if (line_open_) {
    line_open_ = false;
    print(kRenew);
  }
}

void Progress::print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), out_) == text.size() && std::fflush(out_) == 0) {
    return;
  }
  const int failure = errno;
  std::clearerr(out_);  // the program's end would take it for lost output
  style_ = Style::quiet;
  line_open_ = false;
  log_warning(
      fmt::format("progress cannot be written ({}); the run continues, and train.log has it",
                  std::error_code(failure, std::generic_category()).message()));
}

Progress::Style progress_style(ProgressFormat format, std::FILE* out) {
  if (format != ProgressFormat::automatic) {
    return format == ProgressFormat::pretty ? Progress::Style::pretty : Progress::Style::plain;
  }
  const char* terminal = std::getenv("TERM");
  const bool capable =
      terminal != nullptr && std::string(terminal) != "dumb" &&
      std::getenv("SLURM_JOB_ID") == nullptr &&
      std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr;  // mpirun's ranks have one each
  return capable && isatty(fileno(out)) == 1 ? Progress::Style::pretty : Progress::Style::plain;
}

}  // namespace fp8train
