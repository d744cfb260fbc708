// fp8train report: runs as one HTML page.

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/screen.h"
#include "commands.h"
#include "run_report.h"

namespace fp8train {
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out = "report.html";
};

int report(const ReportOptions& options) {
  const std::string out = options.out == "-" ? "/dev/stdout" : options.out;
  if (const std::string problem = why_not_replaced(out); !problem.empty()) {
    throw ConfigError("--out: " + problem);
  }
  write_file_atomically(out, report_page({options.runs.begin(), options.runs.end()}));
  if (!is_stream(out)) {  // it may be standard output
    print_fitted("wrote {}\n", out);
  }
  return 0;
}

}  // namespace

void add_report(Arguments command, Action& action) {
  auto options = std::make_shared<ReportOptions>();
  command.required_paths("runs", options->runs,
                         "Folders of runs (their output_dir), to be compared");
  command.path("--out", options->out, "The page to write (-: standard output)", PathUse::output);
  command.run(action, [options] { return report(*options); });
}

}  // namespace fp8train
