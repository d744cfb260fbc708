#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/atomic_file.h"
#include "base/cache_folder.h"
#include "base/content_hash.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/flight_recorder.h"
#include "base/log.h"
#include "data/text_source.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

/// Returns a lock that the process which runs a command holds; released by destruction. A file
/// system without such locks lets several processes run it, each of which writes the whole output.
Descriptor lock_command(const fs::path& file) {
  Descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  while (lock.is_open() && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 &&
         (errno == EWOULDBLOCK || errno == EINTR)) {
    section_advances();  // the watchdog of the process that holds the lock ends a run that hangs
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return lock;
}

/// A command that runs, and the reading end of its output. Signals that ask a run to stop do not
/// end it, since the run stops at its first step then; a reader that is gone does.
class RunningCommand {
 public:
  explicit RunningCommand(const std::string& command) : command_(command) {
    std::array<int, 2> ends = {-1, -1};
    bool started = ::pipe2(ends.data(), O_CLOEXEC) == 0;
    if (started) {
      output_ = Descriptor(ends[0]);
      const Descriptor input(ends[1]);
      started = spawn(input.get());
    }
    if (!started) {
      throw DeviceError(fmt::format("the command '{}' cannot be started", command));
    }
  }
  ~RunningCommand() {
    output_.close();
    if (process_ > 0) {  // an error: nobody reads any more
      ::kill(process_, SIGKILL);
      ::waitpid(process_, nullptr, 0);
    }
  }

  /// Returns the number of bytes read; 0 at the end. Throws DeviceError.
  size_t read(char* to, size_t bytes) {
    ssize_t count = -1;
    do {
      count = ::read(output_.get(), to, bytes);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      throw DeviceError(fmt::format("the output of the command '{}' cannot be read", command_));
    }
    return static_cast<size_t>(count);
  }

  /// Waits for its end. Throws DataError if it failed.
  void finish() {
    output_.close();
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    if (status != 0) {
      throw DataError(fmt::format("the command '{}' ended with {}", command_,
                                  WIFSIGNALED(status)
                                      ? fmt::format("signal {}", WTERMSIG(status))
                                      : fmt::format("exit code {}", WEXITSTATUS(status))));
    }
  }

 private:
  bool spawn(int output) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    ::posix_spawnattr_init(&attributes);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);  // ignored here (base/signals.h)
    sigaddset(&defaults, SIGXFSZ);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    std::string shell = "sh", option = "-c", script = "trap '' HUP INT TERM USR1\n" + command_;
    const std::array<char*, 4> words = {shell.data(), option.data(), script.data(), nullptr};
    const int failure =
        ::posix_spawn(&process_, "/bin/sh", &files, &attributes, words.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&files);
    return failure == 0;
  }

  std::string command_;
  pid_t process_ = -1;
  Descriptor output_;
};

/// Writes the output to a file whose name begins with `stem`. Returns the file.
fs::path run(const std::string& command, const fs::path& stem) {
  log_info(fmt::format("data: '{}' is run, once on this machine", command));
  RunningCommand running(command);
  std::array<char, 1 << 16> part = {};
  size_t bytes = running.read(part.data(), part.size());
  const bool is_empty = bytes == 0;
  fs::path file = stem.string() + (!is_empty && part[0] == '{' ? ".jsonl" : ".txt");
  AtomicFile output(file, Access::owner);
  for (; bytes > 0; bytes = running.read(part.data(), part.size())) {
    output.write(part.data(), bytes);
    section_advances();
  }
  running.finish();
  if (is_empty) {
    throw DataError(fmt::format("the command '{}' wrote nothing", command));
  }
  output.commit();
  return file;
}

}  // namespace

fs::path output_of_command(const std::string& command) {
  // A command may name files relative to the working directory.
  const std::string key = fs::current_path().string() + '\n' + command;
  ContentHasher hash;
  hash.update(key.data(), key.size());
  const fs::path folder = cache_folder() / "commands";
  create_folder(folder);
  const fs::path stem = folder / hash.digest();
  const Descriptor lock = lock_command(stem.string() + ".lock");
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
