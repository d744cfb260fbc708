// Any bytes as metrics.jsonl of a run, of which a report is made.

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "plain_message.h"
#include "run_report.h"
#include "scratch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string folder = scratch_path() + "-report";
  static const int registered = std::atexit([] {
    std::error_code ignored;
    std::filesystem::remove_all(scratch_path() + "-report", ignored);
  });
  static_cast<void>(registered);
  std::filesystem::create_directories(folder);
  write_scratch(folder + "/metrics.jsonl", {reinterpret_cast<const char*>(data), size});
  try {
    fp8train::report_page({folder});
  } catch (const fp8train::Error& error) {
    require_plain(error);
  }
  return 0;
}
