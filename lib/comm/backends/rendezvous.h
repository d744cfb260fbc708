#pragma once
// The rendezvous of ranks without a process manager: Slurm gives each rank its number, and a file
// in a folder that all of them see holds the data that they must share. Its name and its first line
// identify the run, so that a file of an earlier run is never used. It is readable by its owner
// only, and a file of another user is not read.

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/not_copied.h"
#include "comm/launch.h"

namespace fp8train {

/// The facts by which a rank finds the others: its number, their count and a file.
struct Rendezvous {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int node = 0;
  std::string run;             ///< unique to this start of the run: job, step, restart
  std::filesystem::path file;  ///< without what `run` adds
  double timeout_seconds = 600;
};

/// Reads the variables that srun sets. Throws ConfigError if one is missing or has a value that
/// srun does not set.
Rendezvous slurm_rendezvous(const Environment& variable, const std::filesystem::path& file,
                            double timeout_seconds);

/// The file that the first rank leaves for the others. The destructor of the first rank's object
/// removes the file: it must live until all ranks are known to have read it.
class FileStore : NotCopied {
 public:
  /// The first rank writes `bytes` bytes of `data`; the others wait for them and read them into
  /// `data`. Throws TimeoutError naming the file when they do not come in the rendezvous's time,
  /// DeviceError when the file cannot be written.
  FileStore(const Rendezvous& rendezvous, void* data, size_t bytes);
  ~FileStore();

  const std::filesystem::path& path() const { return path_; }

 private:
  void write(const Rendezvous& rendezvous, const void* data, size_t bytes);
  void read(const Rendezvous& rendezvous, void* data, size_t bytes);

  std::filesystem::path path_;
  bool mine_;
};

}  // namespace fp8train
