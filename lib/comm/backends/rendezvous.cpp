#include "comm/backends/rendezvous.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/key_error.h"
#include "base/text.h"

namespace fp8train {
namespace {

constexpr auto kReadInterval = std::chrono::milliseconds(100);

const char* needed(const Environment& variable, const char* name) {
  const char* text = variable(name);
  if (text == nullptr || *text == 0) {
    throw KeyError("comm.bootstrap",
                   fmt::format(": file needs srun, which says who each rank is, but {} is not set. "
                               "Start with `srun fp8train ...`, or set comm.bootstrap: mpi",
                               name));
  }
  return text;
}

int task_number(const Environment& variable, const char* name) {
  const std::string_view text = needed(variable, name);
  const std::optional<int> value = whole_number<int>(text);
  if (!value) {
    throw ConfigError(fmt::format(
        "{} is '{}', which srun does not set it to (expected a whole number)", name, text));
  }
  return *value;
}

/// Becomes a part of a file's name.
std::string plain_word(const char* name, std::string text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '+';
  });
  if (!is_plain) {
    throw ConfigError(fmt::format(
        "{} is '{}', which srun does not set it to (expected letters and digits)", name, text));
  }
  return text;
}

/// Whether it is a file of this user: another one could name a rank 0 of their own.
bool is_mine(const std::filesystem::path& path) {
  struct stat found = {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         found.st_uid == ::geteuid();
}

std::string first_line(const Rendezvous& rendezvous) {
  return fmt::format("fp8train rendezvous of {} ranks, run {}\n", rendezvous.size, rendezvous.run);
}

}  // namespace

Rendezvous slurm_rendezvous(const Environment& variable, const std::filesystem::path& file,
                            double timeout_seconds) {
  Rendezvous rendezvous;
  rendezvous.rank = task_number(variable, "SLURM_PROCID");
  const char* step_tasks = variable("SLURM_STEP_NUM_TASKS");
  rendezvous.size =
      task_number(variable, step_tasks != nullptr ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  rendezvous.local_rank = task_number(variable, "SLURM_LOCALID");
  rendezvous.node = task_number(variable, "SLURM_NODEID");
  if (rendezvous.rank >= rendezvous.size) {
    throw ConfigError(fmt::format("SLURM_PROCID is {}, but there are {} tasks", rendezvous.rank,
                                  rendezvous.size));
  }
  const char* restarts = variable("SLURM_RESTART_COUNT");
  rendezvous.run =
      fmt::format("{}.{}.{}", plain_word("SLURM_JOB_ID", needed(variable, "SLURM_JOB_ID")),
                  plain_word("SLURM_STEP_ID", needed(variable, "SLURM_STEP_ID")),
                  plain_word("SLURM_RESTART_COUNT", restarts == nullptr ? "0" : restarts));
  rendezvous.file = file;
  rendezvous.timeout_seconds = timeout_seconds;
  return rendezvous;
}

FileStore::FileStore(const Rendezvous& rendezvous, void* data, size_t bytes)
    : path_(rendezvous.file), mine_(rendezvous.rank == 0) {
  path_ += "." + rendezvous.run;
  if (mine_) {
    write(rendezvous, data, bytes);
  } else {
    read(rendezvous, data, bytes);
  }
}

FileStore::~FileStore() {
  if (mine_) {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
}

void FileStore::write(const Rendezvous& rendezvous, const void* data, size_t bytes) {
  if (path_.has_parent_path()) {
    create_folder(path_.parent_path());
  }
  const std::string text =
      first_line(rendezvous) + std::string(static_cast<const char*>(data), bytes);
  write_file_atomically(path_, text, Access::owner);  // who has read it can take part
}

/// Looks again and again: the folder's other machines may see the file late.
void FileStore::read(const Rendezvous& rendezvous, void* data, size_t bytes) {
  const std::string expected = first_line(rendezvous);
  RunningTime waited(1);
  while (true) {
    std::ifstream file(path_, std::ios::binary);
    const std::string text =
        is_mine(path_) ? std::string((std::istreambuf_iterator<char>(file)), {}) : "";
    if (text.size() == expected.size() + bytes && text.starts_with(expected)) {
      std::memcpy(data, text.data() + expected.size(), bytes);
      return;
    }
    if (waited.seconds() > rendezvous.timeout_seconds) {
      throw TimeoutError(fmt::format(
          "rank {}: rank 0 has not written {} in {} s{}; all nodes must see that folder "
          "(comm.bootstrap_file)",
          rendezvous.rank, path_.string(), rendezvous.timeout_seconds,
          text.empty() ? "" : " (what is there is another run's)"));
    }
    std::this_thread::sleep_for(kReadInterval);
  }
}

}  // namespace fp8train
