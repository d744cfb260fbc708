#pragma once
// The commands with their parts and options as data, for pages of --help and for shells.

#include <string>
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
  /// Explains keys that are given by their names.
  bool takes_key_name() const;
};

/// The program with all its commands.
CommandNode command_tree(const CLI::App& program);

/// The page that --help prints, in at most 80 columns, or those of a terminal if it has fewer.
/// `path` is "fp8train bench step".
std::string help_page(const CommandNode& command, const std::string& path);
std::string help_page(const CLI::App& command);

/// Returns what a shell offers for the last of the words behind the program's name, which may be
/// empty: on each line a word that begins so, and after a tab what it is for. The line FILES is for
/// all files.
std::string completions(const CommandNode& program, const std::vector<std::string>& words);

}  // namespace fp8train
