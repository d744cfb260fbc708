#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "cli.h"
#include "commands.h"

namespace {

/// GCC's OpenMP lets idle threads spin for milliseconds before they sleep. Where other programs use
/// the same cores, the threads that spin keep the ones that work from running, and a step takes a
/// hundred times as long. Its runtime reads the count before main(), hence the second start. What
/// the user set stays.
void limit_spinning(char** argv) {
  constexpr const char* kCount = "GOMP_SPINCOUNT";
  constexpr const char* kIterations = "3000";  // longer than the gaps within a step
  if (std::getenv(kCount) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    return;
  }
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  if (failure || setenv(kCount, kIterations, 0) != 0) {
    return;
  }
  execv(program.c_str(), argv);  // returns only when it cannot; then it runs as it is
}

/// A closed standard stream would give its number to the next file that is opened, and what is
/// printed would go into that file.
void open_standard_streams() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (fcntl(number, F_GETFD) < 0 && errno == EBADF) {
      open("/dev/null", O_RDWR);  // the lowest free number
    }
  }
}

/// A rank that reads what many ranks have written has a file of each open; the usual limit of a
/// shell is 1024.
void allow_many_files() {
  constexpr rlim_t kFiles = 65'536;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kFiles) {
    limit.rlim_cur = std::min(limit.rlim_max, kFiles);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

}  // namespace

int main(int argc, char** argv) {
  fp8train::report_memory_at_terminate();
  open_standard_streams();
  allow_many_files();
  limit_spinning(argv);
  return fp8train::run_program(fp8train::all_commands(), {argv + 1, argv + argc});
}
