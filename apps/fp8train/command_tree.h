#pragma once
// Commands with their parts and options, as CLI11 has them, on pages of --help and for shells.

#include <string>
#include <vector>

#include "cli.h"

namespace fp8train {

/// Returns the page that --help prints, in at most 80 columns, or those of a terminal if it has
/// fewer.
std::string help_page(const CLI::App& command);

/// Returns what a shell offers for the last of the words behind the program's name, which may be
/// empty: on each line a word that begins so, and after a tab what it is for. The line FILES is for
/// all files.
std::string completions(const CLI::App& program, const std::vector<std::string>& words);

}  // namespace fp8train
