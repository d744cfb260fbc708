#include "io/checkpoint/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"

namespace fp8train {
namespace {

struct Holder {
  std::string host;
  int64_t pid = 0;
  std::string job;  ///< SLURM_JOB_ID, or empty
};

Holder this_process() {
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  const char* job = std::getenv("SLURM_JOB_ID");
  return {host.data(), ::getpid(), job == nullptr ? "" : job};
}

std::string describe(const Holder& holder) {
  return fmt::format("process {} on {}{}", holder.pid, holder.host,
                     holder.job.empty() ? "" : " (Slurm job " + holder.job + ")");
}

/// An empty or unreadable file gives a holder without host: nobody.
Holder read_holder(int descriptor) {
  std::array<char, 4096> text = {};
  const ssize_t got = ::pread(descriptor, text.data(), text.size(), 0);
  const auto document = nlohmann::json::parse(
      std::string(text.data(), got > 0 ? static_cast<size_t>(got) : 0), nullptr, false);
  if (!document.is_object()) return {};
  try {
    return {document.value("host", ""), document.value("pid", int64_t{0}),
            document.value("slurm_job", "")};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

bool write_holder(int descriptor, const Holder& holder) {
  const nlohmann::ordered_json document = {
      {"host", holder.host}, {"pid", holder.pid}, {"slurm_job", holder.job}};
  const std::string text = document.dump() + "\n";
  return ::ftruncate(descriptor, 0) == 0 &&
         ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& directory) {
  const std::string path = (directory / "run.lock").string();
  try {
    create_folder(directory);
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      throw DeviceError(fmt::format("cannot create {}: {}", path, std::strerror(errno)));
    }
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format(
        "{}; choose an output directory in a folder that can be written to", error.what()));
  }
  const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
  const Holder holder = read_holder(descriptor_);
  const Holder self = this_process();
  const bool same_job = !self.job.empty() && holder.job == self.job;
  const bool elsewhere = !holder.host.empty() && holder.host != self.host;
  if (!locked || (elsewhere && !same_job)) {
    ::close(descriptor_);
    descriptor_ = -1;
    throw ConfigError(fmt::format(
        "{} is in use by another run: {}; choose another output directory{}", directory.string(),
        holder.host.empty() ? "its name is not known" : describe(holder),
        locked ? fmt::format(", or remove {} if that run is over", path) : ""));
  }
  if (!holder.host.empty()) {
    warning_ =
        fmt::format("the previous run in {} did not end cleanly; its lock ({}) was taken over",
                    directory.string(), describe(holder));
  }
  if (!write_holder(descriptor_, self)) {
    const int code = errno;
    ::close(descriptor_);
    descriptor_ = -1;
    throw DeviceError(fmt::format("cannot write {}: {}", path, std::strerror(code)));
  }
}

void RunLock::release() const {
  // Emptied, not removed: another run may have opened this very file already.
  [[maybe_unused]] const int ignored = ::ftruncate(descriptor_, 0);
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) {
    release();
    ::close(descriptor_);
  }
}

}  // namespace fp8train
