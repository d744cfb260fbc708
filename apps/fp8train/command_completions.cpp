// The scripts of `fp8train completions`, with which shells complete words by calling `fp8train
// complete WORDS...`.

#include <fmt/format.h>

#include <tuple>

#include "commands.h"

namespace fp8train {
namespace {

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

}  // namespace

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
