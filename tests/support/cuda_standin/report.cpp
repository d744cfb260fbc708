// What the program left behind, and what it ran.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "gpu.h"
#include "state.h"

namespace fp8train::standin {
namespace {

constexpr int kExitDefects = 70;

/// Everything that a correct program has freed, in words; empty for none.
std::string leaks(const State& at_end) {
  std::string text;
  const auto add = [&](size_t count, const char* what) {
    if (count > 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
    }
  };
  add(at_end.memory.allocations(), "allocations");
  add(at_end.streams.size(), "streams");
  add(at_end.events.size(), "events");
  add(at_end.graphs.size(), "graphs");
  add(at_end.executables.size(), "executable graphs");
  return text;
}

/// One line for the run and one for each kernel that was launched, behind what is in the file.
void write_counts(const State& at_end, const char* path) {
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) {
    return;
  }
  const Counts& counts = at_end.counts;
  size_t kinds = 0;
  for (const auto& [function, kernel] : at_end.kernels) {
    kinds += kernel.launches > 0 ? 1 : 0;
  }
  std::fprintf(file,
               "run gpu=%s kernels=%zu registered=%zu launches=%llu graph_launches=%llu "
               "products=%llu copies=%llu queries=%llu not_ready=%llu waits=%llu\n",
               gpu().key, kinds, at_end.kernels.size(),
               static_cast<unsigned long long>(counts.launches),
               static_cast<unsigned long long>(counts.graph_launches),
               static_cast<unsigned long long>(counts.products),
               static_cast<unsigned long long>(counts.copies),
               static_cast<unsigned long long>(counts.queries),
               static_cast<unsigned long long>(counts.not_ready),
               static_cast<unsigned long long>(counts.waits));
  for (const auto& [function, kernel] : at_end.kernels) {
    if (kernel.launches > 0) {
      std::fprintf(file, "kernel %s\n", kernel.name.c_str());
    }
  }
  std::fclose(file);
}

/// Destroyed after everything of the program, which is made later.
struct AtExit {
  ~AtExit() {
    const State& at_end = state();
    if (const char* path = std::getenv("FP8TRAIN_STANDIN_REPORT")) {
      write_counts(at_end, path);
    }
    const std::string left = leaks(at_end);
    if (!left.empty()) {
      std::fprintf(stderr, "cuda stand-in: not freed: %s\n", left.c_str());
    }
    for (const std::string& refusal : at_end.refusals) {
      std::fprintf(stderr, "cuda stand-in: refused: %s\n", refusal.c_str());
    }
    if (!left.empty() || !at_end.refusals.empty()) {
      std::fflush(nullptr);
      _exit(kExitDefects);
    }
  }
};
const AtExit at_exit;

}  // namespace
}  // namespace fp8train::standin
