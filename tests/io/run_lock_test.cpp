#include "io/checkpoint/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::string host() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

TEST_CASE("a second run in one directory is refused while the first lives") {
  const test::TempDir dir;
  auto first = std::make_unique<RunLock>(dir / "run");
  CHECK(first->warning().empty());
  CHECK_THAT(
      message_of<ConfigError>([&] { RunLock second(dir / "run"); }),
      Contains("in use by another run: process " + std::to_string(::getpid())) && Contains(host()));
  first.reset();
  CHECK(RunLock(dir / "run").warning().empty());
}

TEST_CASE("the lock of a process that died is taken over with a warning") {
  const test::TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    auto* lock = new RunLock(dir.path());  // never released: the process ends without it
    ::_exit(lock->warning().empty() ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  const RunLock lock(dir.path());
  CHECK_THAT(lock.warning(),
             Contains("did not end cleanly") && Contains("process " + std::to_string(child)));
}

TEST_CASE("a lock of another machine is taken over only by the same Slurm job") {
  const test::TempDir dir;
  const std::string holder = R"({"host":"elsewhere","pid":1,"slurm_job":"4711"})";
  test::write_file(dir / "run.lock", holder);
  ::unsetenv("SLURM_JOB_ID");
  CHECK_THAT(message_of<ConfigError>([&] { RunLock lock(dir.path()); }),
             Contains("elsewhere (Slurm job 4711)") && Contains("remove"));
  CHECK(test::read_file(dir / "run.lock") == holder);
  ::setenv("SLURM_JOB_ID", "4711", 1);
  CHECK_THAT(RunLock(dir.path()).warning(), Contains("elsewhere"));
  ::unsetenv("SLURM_JOB_ID");
}

TEST_CASE("an unreadable lock file is nobody's") {
  const test::TempDir dir;
  test::write_file(dir / "run.lock", "{torn");
  CHECK(RunLock(dir.path()).warning().empty());
  test::write_file(dir / "run.lock", R"({"host":7})");
  CHECK(RunLock(dir.path()).warning().empty());
}

}  // namespace
}  // namespace fp8train
