#include "base/log.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "support/temp_dir.h"

namespace fp8train {

TEST_CASE("log lines reach the file with their level; lower levels are dropped", "[base]") {
  const test::TempDir folder;
  open_log_file((folder / "run.log").string());
  log_info("step {} done");  // braces are text
  log_warning("logged line");
  set_log_level(LogLevel::error);
  log_warning("dropped line");
  set_log_level(LogLevel::info);
  const std::string text = read_text_file(folder / "run.log", 1 << 16);
  CHECK_THAT(text, Catch::Contains("info step {} done"));
  CHECK_THAT(text, Catch::Contains("warning logged line"));
  CHECK_THAT(text, !Catch::Contains("dropped line"));
}

TEST_CASE("a log file that cannot be opened is a DeviceError", "[base]") {
  CHECK_THROWS_AS(open_log_file("/proc/no-such-folder/run.log"), DeviceError);
}

}  // namespace fp8train
