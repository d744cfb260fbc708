#include "base/log.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "base/screen.h"
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

TEST_CASE("an error that standard error has is in the file alone", "[base]") {
  log_reported_error("no file is open in a program that logs nothing");
  const test::TempDir folder;
  open_log_file((folder / "run.log").string());
  std::FILE* const captured = std::tmpfile();
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(::fileno(captured), STDERR_FILENO);
  log_reported_error("the run ended");
  log_warning("after it");
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::rewind(captured);
  std::string shown(4096, '\0');
  shown.resize(std::fread(shown.data(), 1, shown.size(), captured));
  std::fclose(captured);
  CHECK_THAT(shown, Catch::Contains("after it") && !Catch::Contains("the run ended"));
  CHECK_THAT(read_text_file(folder / "run.log", 1 << 16), Catch::Contains("error the run ended"));
}

TEST_CASE("control characters of names do not reach the log or a terminal", "[base]") {
  CHECK(without_controls("a\x1b[31m\x07\r\x7f b\n\tc") == "a\\x1b[31m\\x07\\x0d\\x7f b\n\tc");
  CHECK(without_controls("\xc2\x9b"
                         "2J \xc3\xa9 \xe2\x82\xac") == "\\x9b2J \xc3\xa9 \xe2\x82\xac");
  CHECK(without_controls("\xff\xc2") == "\xff\xc2");
  CHECK(has_control("a\nb"));
  CHECK_FALSE(has_control("a b \xc3\xa9"));
  const test::TempDir folder;
  open_log_file((folder / "run.log").string());
  log_warning("tensor '\x1b]0;title\x07'");
  CHECK_THAT(read_text_file(folder / "run.log", 1 << 16),
             Catch::Contains("warning tensor '\\x1b]0;title\\x07'"));
}

TEST_CASE("a log file that cannot be opened is a DeviceError", "[base]") {
  CHECK_THROWS_AS(open_log_file("/proc/no-such-folder/run.log"), DeviceError);
}

}  // namespace fp8train
