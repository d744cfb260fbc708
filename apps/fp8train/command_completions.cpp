// fp8train completions and fp8train man: what shells and man(1) read about this program.

#include <fmt/format.h>

#include "base/error.h"
#include "command_tree.h"
#include "commands.h"
#include "commit.h"
#include "config/show.h"

namespace fp8train {
namespace {

using Writer = std::string (*)(const CommandNode&, const std::vector<std::string>&);

void add_shell(Arguments parent, Action& action, const char* shell, const char* example,
               Writer writer) {
  Arguments part = parent.part(shell, std::string("Completion script for ") + shell, example);
  part.run(action, [part, writer] {
    fmt::print("{}", writer(command_tree(part), config_keys()));
    return 0;
  });
}

}  // namespace

void add_completions(Arguments command, Action& action) {
  add_shell(command, action, "bash", "eval \"$(fp8train completions bash)\"", bash_completion);
  add_shell(command, action, "zsh", "fp8train completions zsh > _fp8train  # in a folder of fpath",
            zsh_completion);
  add_shell(command, action, "fish", "fp8train completions fish | source", fish_completion);
}

void add_man(Arguments command, Action& action) {
  command.run(action, [command] {
    fmt::print("{}", man_page(command_tree(command), version_number(), kCommitDate));
    return 0;
  });
}

}  // namespace fp8train
