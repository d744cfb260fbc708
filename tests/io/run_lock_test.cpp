#include "io/checkpoint/run_directory.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace {

bool has_locks = true;

}  // namespace

extern "C" {

/// flock(), under a name that does not hide struct flock.
int lock_file(int descriptor, int operation) __asm__("flock");
int lock_file(int descriptor, int operation) {
  if (!has_locks) {
    errno = ENOSYS;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, descriptor, operation));
}

}  // extern "C"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
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
  const std::string refused = message_of<ConfigError>([&] { check_not_in_use(dir / "run"); });
  CHECK(refused == message_of<ConfigError>([&] { RunLock second(dir / "run"); }));
  first.reset();
  CHECK_NOTHROW(check_not_in_use(dir / "run"));
  CHECK(RunLock(dir / "run").warning().empty());
}

TEST_CASE("a start that looks whether a directory is free leaves it as it is") {
  const test::TempDir dir;
  check_not_in_use(dir / "run");
  CHECK_FALSE(fs::exists(dir / "run"));
  ::unsetenv("SLURM_JOB_ID");
  for (const char* name : {"run.lock", "run.lock.held"}) {
    const test::TempDir used;
    test::write_file(used / name, R"({"host":"elsewhere","pid":1,"slurm_job":"4711"})");
    const std::string refused = message_of<ConfigError>([&] { check_not_in_use(used.path()); });
    CHECK_THAT(refused, Contains("remove " + (used / name).string()));
    CHECK(std::distance(fs::directory_iterator(used.path()), {}) == 1);
    ::setenv("SLURM_JOB_ID", "4711", 1);
    CHECK_NOTHROW(check_not_in_use(used.path()));
    ::unsetenv("SLURM_JOB_ID");
    test::write_file(used / name, R"({"host":")" + host() + R"(","pid":1,"started":1})");
    CHECK_NOTHROW(check_not_in_use(used.path()));  // of a process that is over
  }
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

TEST_CASE("a lock of the other kind is seen") {
  const test::TempDir dir;
  const fs::path file = dir / "run.lock.held";
  const std::string name = R"(,"slurm_job":"","started":)";
  test::write_file(file, R"({"host":"elsewhere","pid":1)" + name + "1}");
  CHECK_THAT(
      message_of<ConfigError>([&] { RunLock lock(dir.path()); }),
      Contains("process 1 on elsewhere") && Contains("or remove") && Contains("run.lock.held"));
  CHECK(test::read_file(dir / "run.lock").empty());
  test::write_file(file, "");  // it is being made
  CHECK_THAT(message_of<ConfigError>([&] { RunLock lock(dir.path()); }),
             Contains("its name is not known"));
  CHECK(fs::exists(file));
  test::write_file(file, R"({"host":")" + host() + R"(","pid":1)" + name + "1}");
  CHECK_THAT(RunLock(dir.path()).warning(), Contains("its lock (process 1 on"));
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("what the kernel lets lock is not free while its holder is alive") {
  const test::TempDir dir;
  std::string holder;
  {
    const RunLock lock(dir.path());
    holder = test::read_file(dir / "run.lock");
  }
  test::write_file(dir / "run.lock", holder);
  CHECK_THAT(message_of<ConfigError>([&] { RunLock lock(dir.path()); }),
             Contains("process " + std::to_string(::getpid())) && Contains("or remove"));
  CHECK(test::read_file(dir / "run.lock") == holder);
}

TEST_CASE("a process that has ended holds nothing, though its parent does not know yet") {
  const test::TempDir dir;
  const pid_t child = ::fork();
  if (child == 0) {
    new RunLock(dir.path());  // never released
    ::_exit(0);
  }
  REQUIRE(child > 0);
  siginfo_t ended = {};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  CHECK_THAT(RunLock(dir.path()).warning(), Contains("process " + std::to_string(child)));
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("the file that is the lock stays until the object goes, which may still write") {
  const test::TempDir dir;
  has_locks = false;
  {
    const RunLock lock(dir.path());
    has_locks = true;
    CHECK_THAT(message_of<ConfigError>([&] { RunLock second(dir.path()); }),
               Contains("in use by another run") && Contains("or remove"));
    lock.release();
    CHECK(fs::exists(dir / "run.lock.held"));
    CHECK(test::read_file(dir / "run.lock").empty());
  }
  CHECK_FALSE(fs::exists(dir / "run.lock.held"));
  const RunLock first(dir.path());
  has_locks = false;
  CHECK_THAT(message_of<ConfigError>([&] { RunLock second(dir.path()); }),
             Contains("in use by another run") && Contains("or remove"));
  has_locks = true;
  CHECK_FALSE(fs::exists(dir / "run.lock.held"));
}

/// The descriptor that has the file open.
int descriptor_of(const fs::path& path) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    if (fs::read_symlink(entry.path(), closed) == fs::canonical(path)) {
      return std::stoi(entry.path().filename().string());
    }
  }
  return -1;
}

TEST_CASE("a lock that is removed is lost though its open file does not answer") {
  const test::TempDir dir;
  const RunLock lock(dir.path());
  CHECK_FALSE(lock.is_lost());
  const int descriptor = descriptor_of(dir / "run.lock");
  REQUIRE(descriptor >= 0);
  ::close(descriptor);  // fstat() fails, as with ESTALE on NFS
  CHECK_FALSE(lock.is_lost());
  fs::rename(dir / "run.lock", dir / "aside");
  CHECK(lock.is_lost());
  fs::rename(dir / "aside", dir / "run.lock");
  CHECK(lock.is_lost());  // another run may have been there
}

}  // namespace
}  // namespace fp8train
