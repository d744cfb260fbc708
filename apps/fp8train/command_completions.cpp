// Completion in shells: the scripts of `fp8train completions`, and `fp8train complete WORDS...`,
// which they call.

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "command_tree.h"
#include "commands.h"
#include "config/show.h"

namespace fp8train {
namespace {

constexpr const char* kFiles = "FILES\n";

constexpr const char* kBash =
    R"sh(# bash completion for fp8train; written by `fp8train completions bash`.
_fp8train() {
  local line IFS=$'\n'
  COMPREPLY=()
  for line in $("${COMP_WORDS[0]}" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); do
    if [[ $line != FILES ]]; then
      COMPREPLY+=("${line%%$'\t'*}")
      continue
    fi
    # With filenames bash would put a backslash before the = of a key.
    if [[ ${COMPREPLY[0]-} != *= ]]; then compopt -o filenames; fi
    COMPREPLY+=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
  done
  if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace; fi
}
complete -F _fp8train fp8train
)sh";

constexpr const char* kZsh = R"sh(#compdef fp8train
# zsh completion for fp8train; written by `fp8train completions zsh`.
_fp8train() {
  local line files=0
  local -a keys described
  for line in ${(f)"$(${~words[1]} complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
    case $line in
      FILES) files=1 ;;
      *=) keys+=($line) ;;
      *) described+=("${${line%%$'\t'*}//:/\\:}:${${line#*$'\t'}#$line}") ;;
    esac
  done
  _describe argument described
  compadd -S '' -a keys
  if (( files )); then _files; fi
}
if [[ ${funcstack[1]} == _fp8train ]]; then _fp8train "$@"; else compdef _fp8train fp8train; fi
)sh";

constexpr const char* kFish =
    R"sh(# fish completion for fp8train; written by `fp8train completions fish`.
function __fp8train_complete
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  for line in ($words[1] complete $words[2..-1] "$current" 2>/dev/null)
    if test $line = FILES
      __fish_complete_path "$current"
    else
      echo $line
    end
  end
end
complete -c fp8train -f -a '(__fp8train_complete)'
)sh";

/// The command or part that the words in front of the last one name.
const CommandNode& named_command(const CommandNode& program,
                                 const std::vector<std::string>& words) {
  const CommandNode* node = &program;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const auto part = std::ranges::find(node->parts, words[i], &CommandNode::name);
    node = part == node->parts.end() ? node : &*part;
  }
  const bool is_run = node == &program && words.size() > 1 && words[words.size() - 2] != "-v" &&
                      words[words.size() - 2] != "--verbose";
  return is_run ? *std::ranges::find(program.parts, "train", &CommandNode::name) : *node;
}

bool takes_value(const CommandNode& node, const std::string& name) {
  return std::ranges::any_of(node.options, [&](const CommandOption& one) {
    return !one.is_positional() && one.takes_value &&
           std::ranges::find(one.names, name) != one.names.end();
  });
}

}  // namespace

std::string completions(const CommandNode& program, const std::vector<std::string>& words) {
  const std::string current = words.empty() ? "" : words.back();
  const std::string previous = words.size() > 1 ? words[words.size() - 2] : "";
  const CommandNode& node = named_command(program, words);
  std::string lines;
  const auto offer = [&](const std::string& word, const std::string& help) {
    if (word.starts_with(current)) lines += word + (help.empty() ? "" : "\t" + help) + "\n";
  };
  const auto offer_keys = [&](const char* ending) {
    for (const std::string& key : config_keys()) offer(key + ending, "");
  };
  if (previous == "--set") {
    offer_keys("=");
  } else if (previous == "=" || (previous.starts_with('-') && takes_value(node, previous))) {
    lines = kFiles;
  } else if (current.starts_with('-')) {
    for (const CommandOption& option : node.options) {
      for (const std::string& name : option.names) {
        if (!option.is_positional()) offer(name, option.help);
      }
    }
  } else {
    for (const CommandNode& part : node.parts) offer(part.name, part.help);
    if (node.takes_keys()) offer_keys("=");
    if (node.takes_key_name()) {
      offer_keys("");
    } else if (node.parts.empty() || &node == &program) {
      lines += kFiles;  // a command that has parts takes no file
    }
  }
  return lines;
}

void add_completions(Arguments command, Action& action) {
  for (const auto& [shell, script, example] :
       {std::tuple("bash", kBash, "eval \"$(fp8train completions bash)\""),
        {"zsh", kZsh, "fp8train completions zsh > _fp8train  # in a folder of fpath"},
        {"fish", kFish, "fp8train completions fish | source"}}) {
    Arguments part = command.part(shell, std::string("Completion script for ") + shell, example);
    part.run(action, [text = script] {
      fmt::print("{}", text);
      return 0;
    });
  }
}

}  // namespace fp8train
