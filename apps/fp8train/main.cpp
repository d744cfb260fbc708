#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cli.h"
#include "verbs.h"

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

}  // namespace

int main(int argc, char** argv) {
  limit_spinning(argv);
  return fp8train::run_program(fp8train::all_verbs(), {argv + 1, argv + argc});
}
