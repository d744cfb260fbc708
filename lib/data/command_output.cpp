#include "data/command_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

#include "base/atomic_file.h"
#include "base/cache_folder.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/log.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

/// Held by the process that runs a command; released by destruction. A file system without such
/// locks lets several processes run it, each of which writes the whole output.
class CommandLock {
 public:
  explicit CommandLock(const fs::path& file)
      : descriptor_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (descriptor_ >= 0) {
      ::flock(descriptor_, LOCK_EX);
    }
  }
  ~CommandLock() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  CommandLock(const CommandLock&) = delete;
  CommandLock& operator=(const CommandLock&) = delete;

 private:
  int descriptor_;
};

/// Writes the output to a file whose name begins with `stem`. Returns the file.
fs::path run(const std::string& command, const fs::path& stem) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), ::pclose);
  if (pipe == nullptr) {
    throw DeviceError(fmt::format("the command '{}' cannot be started", command));
  }
  std::array<char, 1 << 16> part = {};
  size_t bytes = fread(part.data(), 1, part.size(), pipe.get());
  const fs::path file = stem.string() + (bytes > 0 && part[0] == '{' ? ".jsonl" : ".txt");
  AtomicFile output(file, Access::owner);
  const bool is_empty = bytes == 0;
  for (; bytes > 0; bytes = fread(part.data(), 1, part.size(), pipe.get())) {
    output.write(part.data(), bytes);
    section_advances();
  }
  const int status = ::pclose(pipe.release());
  if (status != 0) {
    throw DataError(fmt::format("the command '{}' ended with {}", command,
                                WIFSIGNALED(status)
                                    ? fmt::format("signal {}", WTERMSIG(status))
                                    : fmt::format("exit code {}", WEXITSTATUS(status))));
  }
  if (is_empty) {
    throw DataError(fmt::format("the command '{}' wrote nothing", command));
  }
  output.commit();
  return file;
}

}  // namespace

fs::path output_of_command(const std::string& command) {
  ContentHasher hash;
  hash.update(command.data(), command.size());
  const fs::path folder = cache_folder() / "commands";
  create_folder(folder);
  const fs::path stem = folder / hash.digest();
  const CommandLock lock(stem.string() + ".lock");
  for (const char* const suffix : {".jsonl", ".txt"}) {
    fs::path file = stem.string() + suffix;
    if (fs::exists(file)) {
      log_info(
          fmt::format("data: the output of '{}' is read from {}; remove that file to run the "
                      "command again",
                      command, file.string()));
      return file;
    }
  }
  return run(command, stem);
}

}  // namespace fp8train
