#include "io/checkpoint/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json_reader.h"

namespace fp8train {
namespace {

constexpr size_t kMaxCommands = 16U << 20;

constexpr const char* kLock = "run.lock";
constexpr const char* kFileLock = ".held";  // after it: the lock where the kernel has none

struct Holder {
  std::string host;
  int64_t pid = 0;
  std::string job;      ///< SLURM_JOB_ID, or empty
  int64_t started = 0;  ///< of the process, in ticks since the machine started; 0: not known

  bool operator==(const Holder&) const = default;
};

constexpr int64_t kZombie = -1;

/// The start of a process, field 22 of /proc/PID/stat (proc(5)); 0 where there is none, kZombie
/// where it has ended and its parent has not been informed yet.
int64_t start_of(int64_t pid) {
  constexpr int kFieldsBefore =
      18;  // between the state, which follows the name in brackets, and it
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string state;
  std::string skipped;
  fields >> state;
  for (int i = 0; i < kFieldsBefore; ++i) {
    fields >> skipped;
  }
  int64_t ticks = 0;
  const bool is_known = static_cast<bool>(fields >> ticks);
  return state == "Z" || state == "X" ? kZombie : is_known ? ticks : 0;
}

Holder this_process() {
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  const char* job = std::getenv("SLURM_JOB_ID");
  return {host.data(), ::getpid(), job == nullptr ? "" : job, start_of(::getpid())};
}

/// Whether `self` may take over the lock of a holder. That the kernel lets `self` lock the file is
/// not enough: the holder's file system may have no such locks.
bool is_over(const Holder& holder, const Holder& self) {
  if (holder.host != self.host) {
    return !holder.host.empty() && !self.job.empty() && holder.job == self.job;
  }
  const int64_t started = start_of(holder.pid);
  return started != 0 ? started != holder.started
                      : ::kill(static_cast<pid_t>(holder.pid), 0) != 0 && errno == ESRCH;
}

std::string describe(const Holder& holder) {
  return fmt::format("process {} on {}{}", holder.pid, holder.host,
                     holder.job.empty() ? "" : " (Slurm job " + holder.job + ")");
}

/// An empty or unreadable file gives a holder without host: nobody.
Holder read_holder(int descriptor) {
  std::array<char, 4096> text = {};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  const auto document = json_object_or_empty({text.data(), got > 0 ? static_cast<size_t>(got) : 0});
  try {
    return {document.value("host", ""), document.value("pid", int64_t{0}),
            document.value("slurm_job", ""), document.value("started", int64_t{0})};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

/// Returns nothing where there is no such file.
std::optional<Holder> read_holder(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) {
    return errno == ENOENT ? std::nullopt : std::optional(Holder{});
  }
  return read_holder(file.get());
}

bool write_holder(int descriptor, const Holder& holder) {
  const nlohmann::ordered_json document = {{"host", holder.host},
                                           {"pid", holder.pid},
                                           {"slurm_job", holder.job},
                                           {"started", holder.started}};
  const std::string text = document.dump() + "\n";
  return ::ftruncate(descriptor, 0) == 0 &&
         ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
         ::fsync(descriptor) == 0;  // other machines see it
}

/// Creates a file, or opens it where `flags` let it be there. Throws DeviceError.
Descriptor create(const std::filesystem::path& path, int flags) {
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | flags, 0644));
  if (!file.is_open() && !(errno == EEXIST && (flags & O_EXCL) != 0)) {
    throw DeviceError(
        fmt::format("cannot create {}: {}; choose an output directory in a folder that can be "
                    "written to",
                    path.string(), std::strerror(errno)));
  }
  return file;
}

/// `removable`: the file to remove where the holder may be over; empty: it is alive.
[[noreturn]] void refuse(const std::filesystem::path& directory, const Holder& holder,
                         const std::string& removable) {
  throw ConfigError(fmt::format(
      "{} is in use by another run: {}; choose another output directory{}", directory.string(),
      holder.host.empty() ? "its name is not known" : describe(holder),
      removable.empty() ? "" : fmt::format(", or remove {} if that run is over", removable)));
}

/// Whether another open file has the kernel's lock.
bool is_locked(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return file.is_open() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

/// Returns a note for the log. Refuses a holder that is alive, or may be.
std::string take_over(const std::filesystem::path& directory, const Holder& holder,
                      const std::filesystem::path& removable) {
  if (!is_over(holder, this_process())) {
    refuse(directory, holder, removable.string());
  }
  return fmt::format("the previous run in {} did not end cleanly; its lock ({}) was taken over",
                     directory.string(), describe(holder));
}

/// Removes the file of a holder that is over. Another process may have done so and made its own,
/// which then gets its name back.
void remove_stale(const std::filesystem::path& path, const Holder& stale) {
  const std::string aside = fmt::format("{}.{}", path.string(), ::getpid());
  if (::rename(path.c_str(), aside.c_str()) != 0) {
    return;
  }
  if (read_holder(aside) == stale || ::link(aside.c_str(), path.c_str()) == 0) {
    ::unlink(aside.c_str());
  }
}

}  // namespace

std::filesystem::path RunDirectory::sample(int64_t step) const {
  return samples() / fmt::format("step-{:06}.txt", step);
}

std::filesystem::path RunDirectory::earlier_metrics(int number) const {
  return root / fmt::format("metrics.{}.jsonl", number);
}

std::filesystem::path RunDirectory::earlier_tensors(int number) const {
  return root / fmt::format("tensors.{}.jsonl", number);
}

RunDirectory create_run_directory(const std::filesystem::path& root) {
  RunDirectory run{root};
  create_folder(run.samples());
  create_folder(run.checkpoints());
  return run;
}

void describe_run(const RunDirectory& run, const std::string& resolved_config,
                  const std::string& command_line, const nlohmann::ordered_json& environment) {
  write_file_atomically(run.config(), resolved_config);
  write_json_file(run.environment(), environment);
  std::string commands;
  if (std::filesystem::exists(run.command())) {
    commands = read_text_file(run.command(), kMaxCommands);
  }
  write_file_atomically(run.command(), commands + command_line + "\n");
}

std::vector<std::string> runs_in(const std::filesystem::path& folder) {
  std::vector<std::string> runs;
  std::error_code unseen;
  for (const auto& entry : std::filesystem::directory_iterator(folder, unseen)) {
    if (std::filesystem::exists(RunDirectory{entry.path()}.metrics(), unseen)) {
      runs.push_back(entry.path().string());
    }
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::string earlier_config(const RunDirectory& run) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::error_code error;
  return std::filesystem::is_regular_file(run.config(), error)
             ? read_text_file(run.config(), kMaxBytes)
             : std::string();
}

void check_not_in_use(const std::filesystem::path& directory) {
  for (const char* ending : {"", kFileLock}) {
    const std::string file = (directory / kLock).string() + ending;
    const std::optional<Holder> holder = read_holder(std::filesystem::path(file));
    if (holder && !holder->host.empty() && !is_over(*holder, this_process())) {
      refuse(directory, *holder, is_locked(file) ? "" : file);
    }
  }
}

RunLock::RunLock(const std::filesystem::path& directory) : path_(directory / kLock) {
  try {
    create_folder(directory);
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format(
        "{}; choose an output directory in a folder that can be written to", error.what()));
  }
  descriptor_ = create(path_, 0);
  try {
    if (lock_by_kernel(directory)) {
      write_name();
      check_file(directory);
    } else {
      is_kernels_ = false;
      path_ += kFileLock;
      const Descriptor kernels = std::move(descriptor_);
      lock_by_file(directory);
      write_name();
      check_kernels(directory, kernels.get());
    }
  } catch (const Error&) {
    if (is_named_) {
      release();
    }
    if (!is_kernels_ && descriptor_.is_open()) {
      ::unlink(path_.c_str());
    }
    throw;
  }
}

/// Writes the holder's name into the lock. Both kinds of lock are looked at, the own one first,
/// which has its name by then: of two processes that start at once, one sees the other.
void RunLock::write_name() {
  struct stat own = {};
  is_named_ = true;
  if (::fstat(descriptor_.get(), &own) != 0 || !write_holder(descriptor_.get(), this_process())) {
    throw DeviceError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
  device_ = own.st_dev;
  inode_ = own.st_ino;
}

/// Returns whether the file system has such locks.
bool RunLock::lock_by_kernel(const std::filesystem::path& directory) {
  int result = 0;
  bool waited = false;  // for a start that looks at the lock (check_not_in_use)
  while ((result = ::flock(descriptor_.get(), LOCK_EX | LOCK_NB)) != 0 &&
         (errno == EINTR || (errno == EWOULDBLOCK && !waited))) {
    waited = errno == EWOULDBLOCK;
    std::this_thread::sleep_for(std::chrono::milliseconds(waited ? 20 : 0));
  }
  const bool is_held = result != 0 && errno == EWOULDBLOCK;
  const Holder holder = read_holder(descriptor_.get());
  if (is_held) {
    refuse(directory, holder, "");
  }
  if (result == 0 && !holder.host.empty()) {
    warning_ = take_over(directory, holder, path_);
  }
  return result == 0;
}

void RunLock::lock_by_file(const std::filesystem::path& directory) {
  constexpr int kAttempts = 3;  // others may try at the same time
  for (int attempt = 0; !descriptor_.is_open(); ++attempt) {
    descriptor_ = create(path_, O_EXCL);
    if (!descriptor_.is_open()) {
      const Holder holder = read_holder(path_).value_or(Holder{});
      if (attempt == kAttempts) {
        refuse(directory, holder, path_.string());
      }
      warning_ = take_over(directory, holder, path_);
      remove_stale(path_, holder);
    }
  }
}

/// For the kernel's lock: whether a machine without such locks has the directory.
void RunLock::check_file(const std::filesystem::path& directory) {
  const std::filesystem::path file = path_.string() + kFileLock;
  if (const std::optional<Holder> holder = read_holder(file)) {
    warning_ = take_over(directory, *holder, file);
    remove_stale(file, *holder);
  }
}

/// For the lock that is a file: whether a machine with the kernel's locks has the directory.
/// `descriptor`: of the file that it would have locked.
void RunLock::check_kernels(const std::filesystem::path& directory, int descriptor) {
  const Holder holder = read_holder(descriptor);
  if (holder.host.empty()) {
    return;
  }
  warning_ = take_over(directory, holder, directory / kLock);
  [[maybe_unused]] const int ignored = ::ftruncate(descriptor, 0);
}

bool RunLock::is_lost() const {
  if (is_lost_) {
    return true;
  }
  // Not fstat() of the open file: of one that another machine has removed, NFS says ESTALE.
  struct stat named = {};
  if (::lstat(path_.c_str(), &named) == 0) {
    is_lost_ = named.st_dev != device_ || named.st_ino != inode_;
  } else if (errno == ENOENT) {
    std::error_code unseen;  // where the whole folder is gone, no other run can be in it
    is_lost_ = std::filesystem::exists(path_.parent_path(), unseen);
  }
  return is_lost_;  // or the file system does not answer
}

void RunLock::release() const {
  // Emptied, not removed: another run may have opened this very file already.
  if (is_kernels_) {
    [[maybe_unused]] const int ignored = ::ftruncate(descriptor_.get(), 0);
  }
}

RunLock::~RunLock() {
  release();
  if (!is_kernels_ && !is_lost()) {
    ::unlink(path_.c_str());
  }
}

}  // namespace fp8train
