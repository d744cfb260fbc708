// Preloaded into a program (LD_PRELOAD): counts the allocations between the beginning and the end
// of main() that the program and libstdc++ make, and lets one of them return no memory. Those of
// other libraries pass: some of these end the process. Variables:
//
//   FP8TRAIN_ALLOCATION       which allocation, from 1; 0 or nothing: none
//   FP8TRAIN_ALLOCATION_LOG   a file that gets the number of allocations, at the end of main()

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t bytes);                      // NOLINT: glibc's own
void* __libc_calloc(size_t count, size_t bytes);        // NOLINT
void* __libc_realloc(void* pointer, size_t bytes);      // NOLINT
void* __libc_memalign(size_t alignment, size_t bytes);  // NOLINT
}

namespace {

using Main = int (*)(int, char**, char**);

std::atomic<bool> counting = false;
std::atomic<long> calls = 0;
std::atomic<bool> done = false;
std::atomic<void*> program_base = nullptr;
long wanted = 0;
Main program_main = nullptr;

/// Whether the code at this address belongs to the program or to the library of C++.
bool is_counted(const void* caller) {
  Dl_info info = {};
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return false;
  return std::strstr(info.dli_fname, "libstdc++") != nullptr ||
         info.dli_fbase == program_base.load();
}

/// From the wanted call on, the first one of a counted caller.
bool fails(const void* caller) {
  if (!counting.load(std::memory_order_relaxed)) return false;
  const long call = ++calls;
  if (wanted == 0 || call < wanted || done.load() || !is_counted(caller)) return false;
  errno = ENOMEM;
  return !done.exchange(true);
}

void* memory_or_null(size_t bytes, size_t alignment, const void* caller) {
  if (fails(caller)) return nullptr;
  return alignment == 0 ? __libc_malloc(bytes) : __libc_memalign(alignment, bytes);
}

void* memory(size_t bytes, size_t alignment, const void* caller) {
  void* const pointer = memory_or_null(bytes, alignment, caller);
  if (pointer == nullptr) {
    if (const std::new_handler handler = std::get_new_handler()) handler();
    throw std::bad_alloc();
  }
  return pointer;
}

int counted_main(int count, char** arguments, char** environment) {
  const char* const call = std::getenv("FP8TRAIN_ALLOCATION");
  wanted = call == nullptr ? 0 : std::strtol(call, nullptr, 10);
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(program_main), &info) != 0) program_base = info.dli_fbase;
  counting = true;
  const int code = program_main(count, arguments, environment);
  counting = false;
  if (const char* const log = std::getenv("FP8TRAIN_ALLOCATION_LOG")) {
    if (std::FILE* const file = std::fopen(log, "w")) {
      std::fprintf(file, "%ld", calls.load());
      std::fclose(file);
    }
  }
  return code;
}

}  // namespace

extern "C" {

void* malloc(size_t bytes) {
  return memory_or_null(bytes, 0, __builtin_return_address(0));
}
void* calloc(size_t count, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* pointer, size_t bytes) {
  return fails(__builtin_return_address(0)) ? nullptr : __libc_realloc(pointer, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return memory_or_null(bytes, alignment, __builtin_return_address(0));
}
int posix_memalign(void** pointer, size_t alignment, size_t bytes) {
  *pointer = memory_or_null(bytes, alignment, __builtin_return_address(0));
  return *pointer == nullptr ? ENOMEM : 0;
}

/// Starts the program as the C library does, with counted_main() in place of its main().
int __libc_start_main(Main main, int count, char** arguments, void (*init)(), void (*fini)(),
                      void (*end)(), void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  program_main = main;
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(counted_main, count, arguments, init, fini, end, stack);
}

}  // extern "C"

void* operator new(size_t bytes) {
  return memory(bytes, 0, __builtin_return_address(0));
}
void* operator new[](size_t bytes) {
  return memory(bytes, 0, __builtin_return_address(0));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return memory(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return memory(bytes, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return memory_or_null(bytes, 0, __builtin_return_address(0));
}
void* operator new[](size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return memory_or_null(bytes, 0, __builtin_return_address(0));
}
