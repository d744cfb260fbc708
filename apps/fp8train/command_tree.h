#pragma once
// The commands with their parts and options as data, for shell completions and man pages.

#include <string>
#include <utility>
#include <vector>

#include "cli.h"

namespace fp8train {

struct CommandOption {
  std::vector<std::string> names;  ///< "-c", "--config"; a positional alone: its value
  std::string help;                ///< one line
  std::string value;               ///< what its value is, such as FILE or N
  std::string argument;            ///< the value's name where it may be given alone; else empty
  std::string default_value;       ///< empty: none
  bool takes_value = false, is_required = false, is_repeated = false;

  bool is_positional() const { return !names.front().starts_with("-"); }
};

struct CommandNode {
  std::string name, help, example;
  std::vector<CommandOption> options;  ///< positionals among them
  std::vector<CommandNode> parts;
  bool needs_part = false;

  /// Takes keys of the configuration: `--set KEY=VALUE` and KEY=VALUE.
  bool takes_keys() const;
};

/// The program that `command` belongs to, all commands below it.
CommandNode command_tree(Arguments command);

/// The page that --help prints, in at most 80 columns, or those of a terminal if it has fewer.
/// `path` is "fp8train bench step".
std::string help_page(const CommandNode& command, const std::string& path);
std::string help_page(const CLI::App& command);

/// Names and descriptions of the environment variables that a user may set.
const std::vector<std::pair<const char*, const char*>>& environment_variables();

/// Scripts for `bash`, `zsh` and `fish`, with all options and keys written out.
std::string bash_completion(const CommandNode& program, const std::vector<std::string>& keys);
std::string zsh_completion(const CommandNode& program, const std::vector<std::string>& keys);
std::string fish_completion(const CommandNode& program, const std::vector<std::string>& keys);

/// The manual page in the macros of man(7).
std::string man_page(const CommandNode& program, const std::string& version,
                     const std::string& date);

}  // namespace fp8train
