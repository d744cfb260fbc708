#pragma once
// Keeps two runs out of one output directory. The lock is an advisory lock of the kernel on
// `run.lock`, which also names its holder. A run that dies therefore leaves no lock behind on its
// machine. On a file system without such locks (Lustre without -o flock, some NFS) the lock is the
// file `run.lock.held`, which only one process can create; one whose holder has died on this
// machine is taken over. Machines of both kinds may share the folder: each looks at both files.
// Released by destruction.

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace fp8train {

class RunLock {
 public:
  /// Creates the directory if need be. Throws ConfigError naming host, process and Slurm job of the
  /// holder when another run is alive in it, or may be: a lock written on another machine is taken
  /// over only by the same Slurm job. Throws DeviceError when the file cannot be made or written.
  explicit RunLock(const std::filesystem::path& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

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
  int descriptor_ = -1;
  bool is_kernels_ = true;  ///< false: the file is the lock
  bool is_named_ = false;   ///< the file has this process's name, or part of it
  dev_t device_ = 0;        ///< of the file
  ino_t inode_ = 0;
  mutable std::atomic<bool> is_lost_ = false;
  std::string warning_;
};

}  // namespace fp8train
