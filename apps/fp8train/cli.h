#pragma once
// The command line: commands, the options that several of them share, and the way from an error to
// an exit code. A command is one file with one `add_<name>` function and one line in commands.h.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/written_path.h"
#include "comm/communicator.h"
#include "config/settings.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fp8train {

/// The action of the chosen command; returns the exit code. Set by the command's callback while
/// parsing and run afterwards.
using Action = std::function<int()>;

/// The arguments of one command or of one of its parts; a view, to be passed by value. Names are
/// those of CLI11 ("-c,--config"; one without dashes is positional), and what --help calls the
/// value may follow ("--set KEY=VALUE"; else N, X, FILE, or the name). CLI11's headers stay in
/// cli.cpp, because each file that includes them compiles for seconds. --help shows a target's
/// value as the default.
class Arguments {
 public:
  explicit Arguments(CLI::App& app) : app_(&app) {}

  void option(const char* name, std::string& target, const std::string& help = "");
  void option(const char* name, std::optional<std::string>& target, const std::string& help);
  void option(const char* name, uint64_t& target, const std::string& help = "");
  /// A number below `least` is a usage error.
  void option(const char* name, int64_t& target, int64_t least, const std::string& help);
  void option(const char* name, double& target, double least, const std::string& help);
  void required(const char* name, std::string& target, const std::string& help);
  /// Arguments that name a file or folder: `~/` is expanded as written_path() does, which a shell
  /// does not do after `--option=`.
  void path(const char* name, std::string& target, const std::string& help,
            PathUse use = PathUse::input);
  void required_path(const char* name, std::string& target, const std::string& help,
                     PathUse use = PathUse::input);
  void required_paths(const char* name, std::vector<std::string>& targets, const std::string& help);
  /// One value each time that the option is given.
  void list(const char* name, std::vector<std::string>& targets, const std::string& help);
  void flag(const char* name, bool& target, const std::string& help);

  /// A part of the command; one that has parts cannot be called without, unless parts_optional().
  Arguments part(const char* name, const std::string& help, const std::string& example);
  void parts_optional();

  /// `work` becomes `action` when this command or part, and no part of it, is the one that was
  /// called.
  void run(Action& action, Action work);
  /// The same for work that mpirun or srun may start in several processes, and that only the first
  /// of them does: the others end at once.
  void run_in_first(Action& action, const Action& work);

  CLI::App& app() { return *app_; }

 private:
  template <class Target>
  CLI::Option* add(const char* name, Target& target, const std::string& help,
                   const char* usual = "");

  CLI::App* app_;
};

struct Command {
  const char* name = nullptr;
  const char* help = nullptr;     ///< one line
  const char* example = nullptr;  ///< a command line, for --help
  /// Declares the command's options. The options' variables must outlive the parsing: keep them in
  /// a shared_ptr that the action captures.
  void (*add)(Arguments command, Action& action) = nullptr;
  /// It does all of its work in each process that mpirun or srun starts, which is hardly meant.
  bool works_alone = false;
};

/// Options that commands working on a run's configuration share.
struct CommonOptions {
  std::string config;                            ///< --config FILE
  std::vector<std::string> positionals;          ///< any number of files and of a.b=v
  std::vector<std::string> sets;                 ///< --set a.b=v
  std::map<std::string, std::string> shortcuts;  ///< --seed 1, by key; empty: not given
  int verbose = 0;                               ///< -v; each one lowers the log level
  bool quiet = false;
};

/// Declares --config, --set, the shortcuts, -v, -q and the positionals.
void add_common(Arguments command, CommonOptions& options);

/// Options of commands that look at a run of many ranks from outside.
struct RankOptions {
  CommonOptions common;
  int64_t world_size = 0;      ///< 0: as many as were started, or what the section on jobs says
  int64_t ranks_per_node = 0;  ///< 0: the same, or 8
};
void add_ranks(Arguments command, RankOptions& options);
/// Declares --gpu, the GPU to plan for.
void add_gpu(Arguments command, std::string& gpu);

/// Returns the page that --help prints, in at most 80 columns, or those of a terminal if it has
/// fewer.
std::string help_page(const CLI::App& command);

/// Returns what a shell offers for the last of the words behind the program's name, which may be
/// empty: on each line a word that begins so, and after a tab what it is for. The line FILES is for
/// all files.
std::string completions(const CLI::App& program, const std::vector<std::string>& words);

/// Whether an argument is a.b=v.
bool is_assignment(const std::string& text);

/// The settings that the options and FP8TRAIN_SET describe; also sets the log level. Throws
/// ConfigError. For an estimate, data and the length of the run may be missing.
Settings load(const CommonOptions& options, bool is_estimate = false);

/// The arguments (without the program's name) with the command in front: `train` is put there when
/// the first one is an option other than those for help and version, a file, or a.b=v. `help ...`
/// becomes `... --help`, and `--version` the command. Throws ConfigError with a suggestion when it
/// is a word that is not a command.
std::vector<std::string> with_command(std::vector<std::string> arguments,
                                      const std::vector<std::string>& commands);

/// Parses, runs the chosen command and returns the program's exit code.
int run_program(const std::vector<Command>& commands, std::vector<std::string> arguments);

/// Runs `body` and returns its exit code. A typed error becomes one message on standard error and
/// its code: 1 bug · 2 usage or configuration · 3 data · 4 checkpoint, device, memory or
/// communication · 5 diverged · 86 a rank made no progress within its time limit. `body` itself
/// returns 0 or 75 (stopped on request, checkpoint saved). `who` comes before the message.
int run_guarded(const std::function<int()>& body, const std::string& who = "");

/// From now on an exception of memory that nobody can catch, since a destructor has thrown it, ends
/// the program with exit code 4 and a message. Any other ends it as before.
void report_memory_at_terminate();

/// Inside of an error's handler: says what it is, and ends the other ranks where there are any.
using EndRanks = std::function<void()>;

/// Runs `body` as one of several ranks, which an error of any of them ends: the first rank speaks
/// where it has the same error, and others say who they are. `body` may call what it is given
/// before it lets an error go.
int run_as_rank(Communicator& comm, const std::function<int(const EndRanks&)>& body);

inline constexpr int kExitUsage = 2;
inline constexpr int kExitDevice = 4;
inline constexpr int kExitRequeue = 75;

/// The launcher of so many ranks, before the program's name: "mpirun -n 4 "; empty for one.
inline std::string launcher_of(int64_t ranks) {
  return ranks > 1 ? "mpirun -n " + std::to_string(ranks) + " " : "";
}

/// The command that starts the run which the options describe, such as
/// "mpirun -n 4 fp8train run.yaml optimizer.lr=1e-3".
std::string run_command(const CommonOptions& options, int64_t ranks);

/// The command line of this process, arguments with blanks in quotes.
std::string command_line();

/// Version, commit, compiler and what was compiled in; with `libraries` also the GPU and the files
/// of NVIDIA's libraries that a run on it would use, which opens them.
std::string version_text(bool libraries = false);

}  // namespace fp8train
