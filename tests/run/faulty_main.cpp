// The program with a further option, `--fault KIND@RANK:STEP[:ARGUMENT]` (support/faults.h).

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli.h"
#include "commands.h"
#include "support/faults.h"

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == "--fault") {
      try {
        fp8train::test::inject(fp8train::test::parse_fault(arguments[i + 1]));
      } catch (const std::exception& error) {
        std::fprintf(stderr, "--fault: %s\n", error.what());
        return 2;
      }
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                      arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
      break;
    }
  }
  return fp8train::run_program(fp8train::all_commands(), arguments);
}
