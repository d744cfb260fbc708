#include "out_of_memory.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

namespace fp8train {
namespace {

std::atomic<bool> lacked_memory = false;

/// Operator new calls it instead of throwing.
[[noreturn]] void note_and_throw() {
  lacked_memory = true;
  throw std::bad_alloc();
}

[[noreturn]] void end_program() {
  // An exception that leaves a noexcept function of the standard library (the iterators of folders)
  // cannot be seen here.
  bool lacks_memory = lacked_memory && std::current_exception() == nullptr;
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    lacks_memory = true;
  } catch (...) {
    std::abort();
  }
  if (!lacks_memory) {
    std::abort();
  }
  constexpr std::string_view kMessage = "error: out of memory\n";
  [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  std::_Exit(4);
}

}  // namespace

void report_memory_at_terminate() {
  std::set_new_handler(note_and_throw);
  std::set_terminate(end_program);
}

}  // namespace fp8train
