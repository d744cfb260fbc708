#pragma once
// The files of a run: their paths, the functions that create the folder and its first files, and
// the lock that holds other runs off.

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "io/metrics.h"

namespace fp8train {

/// The paths of the files of a run.
struct RunDirectory {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.resolved.yaml"; }
  std::filesystem::path command() const { return root / "command.txt"; }
  std::filesystem::path environment() const { return root / "env.json"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path tensors() const { return root / "tensors.jsonl"; }
  /// Returns the path of the metrics of an earlier start of the run, such as metrics.1.jsonl.
  std::filesystem::path earlier_metrics(int number) const;
  std::filesystem::path earlier_tensors(int number) const;
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path summary() const { return root / "summary.json"; }
  std::filesystem::path log() const { return root / "train.log"; }
  std::filesystem::path data_hashes() const { return root / "data_hashes.json"; }
  std::filesystem::path samples() const { return root / "samples"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }

  /// samples/step-001000.txt
  std::filesystem::path sample(int64_t step) const;
};

/// Creates the folder with samples/ and checkpoints/. Throws DeviceError when it cannot.
RunDirectory create_run_directory(const std::filesystem::path& root);

/// Writes config.resolved.yaml and env.json, and appends the command line to command.txt (one line
/// per start of the run). Throws DeviceError when a file cannot be written, DataError when
/// command.txt cannot be read.
void describe_run(const RunDirectory& run, const std::string& resolved_config,
                  const std::string& command_line, const nlohmann::ordered_json& environment);

/// Returns the folders in `folder` that are runs (each has metrics.jsonl), sorted; none if it
/// cannot be read.
std::vector<std::string> runs_in(const std::filesystem::path& folder);

/// Returns config.resolved.yaml of an earlier start in this folder; empty when there is none.
/// Throws DataError when it cannot be read.
std::string earlier_config(const RunDirectory& run);

/// Throws ConfigError, as RunLock does, if the directory has a lock whose holder is alive, or may
/// be. Makes nothing, and has the lock for a moment at most: a start that will need it does
/// not work in vain.
void check_not_in_use(const std::filesystem::path& directory);

/// Keeps two runs out of one output directory. The lock is an advisory lock of the kernel on
/// `run.lock`, which also names its holder. A run that dies therefore leaves no lock behind on its
/// machine. On a file system without such locks (Lustre without -o flock, some NFS) the lock is the
/// file `run.lock.held`, which only one process can create; one whose holder has died on this
/// machine is taken over. Machines of both kinds may share the folder: each looks at both files.
/// Released by destruction.
class RunLock {
 public:
  /// Creates the directory if need be. Throws ConfigError naming host, process and Slurm job of the
  /// holder when another run is alive in it, or may be: a lock written on another machine is taken
  /// over only by the same Slurm job. Throws DeviceError when the file cannot be made or written.
  explicit RunLock(const std::filesystem::path& directory);
  ~RunLock();

  /// Lets go of the kernel's file, so that it names no holder, for a process that will not destroy
  /// the object. The kernel's lock stays until the end of the process. The file `run.lock.held`
  /// stays, since this process may still write. Any thread may call it.
  void release() const;

  /// Whether the file was removed or replaced in its directory, where another run may be then. Once
  /// lost, it stays lost.
  bool is_lost() const;
  /// The file that is the lock.
  const std::filesystem::path& path() const { return path_; }

  /// A sentence for the log when the lock of a dead run was taken over, else empty.
  const std::string& warning() const { return warning_; }

 private:
  bool lock_by_kernel(const std::filesystem::path& directory);
  void lock_by_file(const std::filesystem::path& directory);
  void write_name();
  void check_file(const std::filesystem::path& directory);
  void check_kernels(const std::filesystem::path& directory, int descriptor);

  std::filesystem::path path_;
  Descriptor descriptor_;
  bool is_kernels_ = true;  ///< false: the file is the lock
  bool is_named_ = false;   ///< the file has this process's name, or part of it
  dev_t device_ = 0;        ///< of the file
  ino_t inode_ = 0;
  mutable std::atomic<bool> is_lost_ = false;
  std::string warning_;
};

}  // namespace fp8train
