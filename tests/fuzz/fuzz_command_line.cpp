// The input is a command line, one argument a line. It is understood (code 0, and then nothing is
// run here) or refused as a usage error (code 2): the same, whether or not the default command was
// put in front of it.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "commands.h"

namespace {

using namespace fp8train;

constexpr size_t kMostArguments = 16;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// The options of a command, without what it does.
template <size_t Index>
void add_without_action(Arguments arguments, Action& action) {
  static Action dropped;  // what callbacks of options refer to
  dropped = nullptr;
  kCommands[Index].add(arguments, dropped);
  action = [] { return 0; };
}

template <size_t... Index>
std::vector<Command> without_actions(std::index_sequence<Index...> /*indices*/) {
  return {{kCommands[Index].name, kCommands[Index].help, kCommands[Index].example,
           add_without_action<Index>}...};
}

/// A command, or an option of the program itself, stays first; anything else is for `train`.
void check_default_command(std::vector<std::string> given, const std::vector<std::string>& complete,
                           const std::vector<std::string>& names) {
  if (given.empty()) {
    check(complete == std::vector<std::string>{"--help"});
    return;
  }
  const std::string& first = given.front();
  if (first == "help" && (given.size() == 1 || !given[1].starts_with('-'))) {
    given.erase(given.begin());
    given.emplace_back("--help");
    return check(complete == given);
  }
  if (first == "-V" || first == "--version") {
    given.front() = "version";
  } else if (first != "-h" && first != "--help" &&
             std::find(names.begin(), names.end(), first) == names.end()) {
    given.insert(given.begin(), "train");
  }
  check(complete == given);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  // Messages of the program; libFuzzer writes to the descriptor itself.
  stdout = std::fopen("/dev/null", "w");
  stderr = std::fopen("/dev/null", "w");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Command> kWithoutActions =
      without_actions(std::make_index_sequence<std::size(kCommands)>());
  std::vector<std::string> arguments;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; arguments.size() < kMostArguments && std::getline(lines, line);) {
    arguments.push_back(line.substr(0, line.find('\0')));
  }
  const int code = run_program(kWithoutActions, arguments);
  check(code == 0 || code == kExitUsage);
  std::vector<std::string> names;
  for (const Command& command : kWithoutActions) {
    names.emplace_back(command.name);
  }
  try {
    const std::vector<std::string> complete = with_command(arguments, names);
    check_default_command(arguments, complete, names);
    check(with_command(complete, names) == complete);
    check(run_program(kWithoutActions, complete) == code);
  } catch (const ConfigError&) {
    check(code == kExitUsage);
  }
  return 0;
}
