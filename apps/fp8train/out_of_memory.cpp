#include "out_of_memory.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace fp8train {
namespace {

[[noreturn]] void end_program() {
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kMessage = "error: out of memory\n";
    [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
    std::_Exit(4);
  } catch (...) {
    std::abort();
  }
  std::abort();
}

}  // namespace

void report_memory_at_terminate() {
  std::set_terminate(end_program);
}

}  // namespace fp8train
