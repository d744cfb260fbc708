#pragma once
// Writes of this process beyond a size of the file fail while the object lives, as they do on a
// full disk.

#include <sys/resource.h>

#include <csignal>
#include <cstdint>

namespace fp8train::test {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_ = {};
};

}  // namespace fp8train::test
