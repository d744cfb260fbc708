#pragma once
// Runs the program itself, as a user would: fork and exec, output into files, so that a run can be
// watched, signalled and killed.

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train::test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

struct Outcome {
  int code = 0;  ///< exit code; 128 + number when a signal ended it
  std::string out;
  std::string err;
  long peak_kib = 0;       ///< largest resident set
  double cpu_seconds = 0;  ///< of the program and the kernel on its behalf
};

/// A started program. One that still runs is killed by destruction.
class Process {
 public:
  /// Starts `fp8train words...` in the folder `where`. `environment` holds NAME=value; `launcher`
  /// is put before the program, as mpirun does with its arguments, by its full path. `program`:
  /// another one than fp8train.
  Process(const fs::path& where, const Words& words, const Words& environment = {},
          const Words& launcher = {}, const char* program = FP8TRAIN_PROGRAM);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const;
  /// Writes of the program beyond this size of a file fail from now on, as on a full disk.
  void limit_file_size(uint64_t bytes) const;
  bool has_ended();
  /// It sleeps, as in a call that waits for input.
  bool is_waiting() const;
  Outcome wait();

  /// Looks every millisecond until `condition`; false when the program ended before or a minute
  /// passed.
  bool wait_until(const std::function<bool()>& condition);

 private:
  void collect(int options);

  TempDir output_;
  pid_t pid_ = -1;
  bool ended_ = false;
  Outcome outcome_;
};

/// Starts, waits, and requires that no signal ended it.
Outcome run_program(const fs::path& where, const Words& words, const Words& environment = {});

/// What a terminal showed.
struct Screen {
  std::string text;
  int code = 0;
};

/// The program on a terminal of `columns`, with these variables in addition. Each question, which
/// ends with ": ", gets the next line of `typed`, and Enter when there is none.
Screen on_terminal(const fs::path& where, Words words, int columns, const Words& environment = {},
                   const Words& typed = {});

/// run_program() that requires exit code `code`; the message of a failure holds the output.
Outcome expect_code(int code, const fs::path& where, const Words& words);

/// The step of the last whole line of metrics.jsonl; 0 when there is none.
long last_logged_step(const fs::path& run_directory);

/// Files of `a` and `b` hold the same bytes.
bool same_bytes(const fs::path& a, const fs::path& b);

/// About `bytes` of text: a fixed pseudo-random sequence of words.
std::string small_text(size_t bytes);

/// A folder with text.txt, of which a run reads its data.
class TextFolder {
 public:
  explicit TextFolder(const std::string& text = small_text(20000)) {
    write_file(folder_ / "text.txt", text);
  }
  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

 private:
  TempDir folder_;
};

/// The lines of a text.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace fp8train::test
