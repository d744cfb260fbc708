// Completion scripts. Each walks the words of the line to the command and part that they name, and
// then offers that one's parts, options and, where it takes them, keys of the configuration.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "command_tree.h"

namespace fp8train {
namespace {

/// For the program, each command and each part: `path` is "", "config", "config show".
void for_each_command(const CommandNode& node, const std::string& path,
                      const std::function<void(const std::string&, const CommandNode&)>& visit) {
  visit(path, node);
  for (const CommandNode& part : node.parts) {
    for_each_command(part, path.empty() ? part.name : path + " " + part.name, visit);
  }
}

std::vector<std::string> option_names(const CommandNode& node, bool with_value_only) {
  std::vector<std::string> names;
  for (const CommandOption& option : node.options) {
    if (!option.is_positional() && (option.takes_value || !with_value_only)) {
      names.insert(names.end(), option.names.begin(), option.names.end());
    }
  }
  return names;
}

std::vector<std::string> part_names(const CommandNode& node) {
  std::vector<std::string> names;
  for (const CommandNode& part : node.parts) {
    names.push_back(part.name);
  }
  return names;
}

/// In single quotes, as bash and zsh read them.
std::string shell_quoted(const std::string& text) {
  return "'" + replaced(text, "'", "'\\''") + "'";
}

std::string fish_quoted(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

/// Whether the command explains a key that is given by its name.
bool takes_key_name(const CommandNode& node) {
  return std::any_of(node.options.begin(), node.options.end(), [](const CommandOption& one) {
    return one.is_positional() && one.names.front() == "KEY";
  });
}

std::string assignments(const std::vector<std::string>& keys) {
  std::string text;
  for (const std::string& key : keys) {
    text += (text.empty() ? "" : " ") + key + "=";
  }
  return text;
}

/// A zsh description: a colon divides it from its word.
std::string described(const std::string& word, const std::string& help) {
  return shell_quoted(replaced(word, ":", "\\:") + ":" + help);
}

}  // namespace

namespace {

/// Branches of `case $path`: the words, parts and options with a value of each command; and the
/// patterns of commands that take assignments to keys, and names of keys.
struct BashBranches {
  std::string words, parts, valued, keyed, named;
};

BashBranches bash_branches(const CommandNode& program) {
  BashBranches result;
  for_each_command(program, "", [&](const std::string& path, const CommandNode& node) {
    result.words +=
        fmt::format("    '{}') words='{}' ;;\n", path, fmt::join(option_names(node, false), " "));
    result.valued +=
        fmt::format("    '{}') valued='{}' ;;\n", path, fmt::join(option_names(node, true), " "));
    if (!node.parts.empty()) {
      result.parts +=
          fmt::format("    '{}') parts='{}' ;;\n", path, fmt::join(part_names(node), " "));
    }
    if (node.takes_keys()) {
      result.keyed += fmt::format("{}'{}'", result.keyed.empty() ? "" : " | ", path);
    }
    if (takes_key_name(node)) {
      result.named += fmt::format("{}'{}'", result.named.empty() ? "" : " | ", path);
    }
  });
  return result;
}

}  // namespace

std::string bash_completion(const CommandNode& program, const std::vector<std::string>& keys) {
  const auto [words, parts, valued, keyed, named] = bash_branches(program);
  return fmt::format(R"(# bash completion for {0}; written by `{0} completions bash`.
_{0}() {{
  local keys='{1}'
  local current=${{COMP_WORDS[COMP_CWORD]}} previous='' path='' word i words parts valued
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${{COMP_WORDS[i]}}
    parts=
    case $path in
{2}    esac
    if [[ -n $word && " $parts " == *" $word "* ]]; then path="$path${{path:+ }}$word"; fi
    previous=$word
  done
  # A configuration alone is a run of train.
  if [[ -z $path && $COMP_CWORD -gt 1 && $previous != -v && $previous != --verbose ]]; then
    path=train
  fi
  parts= words= valued=
  case $path in
{2}  esac
  case $path in
{3}  esac
  case $path in
{4}  esac
  if [[ $previous == --set ]]; then
    COMPREPLY=($(compgen -W "$keys" -- "$current"))
    compopt -o nospace
  elif [[ $previous == -* && " $valued " == *" $previous "* ]]; then
    compopt -o default
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$parts" -- "$current"))
    case $path in
      {5})
        COMPREPLY+=($(compgen -W "$keys" -- "$current")) ;;
      {6})
        COMPREPLY+=($(compgen -W "${{keys//=/}}" -- "$current"))
        return ;;
    esac
    # A command that has parts takes one of them, and no file; the program takes a configuration.
    if [[ -n $path && -n $parts ]]; then return; fi
    # With filenames bash would put a backslash before the = of a key.
    if [[ ${{COMPREPLY[0]-}} == *= ]]; then compopt -o nospace; else compopt -o filenames; fi
    COMPREPLY+=($(compgen -f -- "$current"))
  fi
}}
complete -F _{0} {0}
)",
                     program.name, assignments(keys), parts, words, valued, keyed, named);
}

std::string zsh_completion(const CommandNode& program, const std::vector<std::string>& keys) {
  std::string options, parts, keyed, named;
  for_each_command(program, "", [&](const std::string& path, const CommandNode& node) {
    std::string described_options, described_parts;
    for (const CommandOption& option : node.options) {
      for (const std::string& name : option.names) {
        described_options += option.is_positional() ? "" : " " + described(name, option.help);
      }
    }
    for (const CommandNode& part : node.parts) {
      described_parts += " " + described(part.name, part.help);
    }
    options += fmt::format("    '{}') options=({} ) ;;\n", path, described_options);
    if (!node.parts.empty()) {
      parts += fmt::format("      '{}') parts=({} ) ;;\n", path, described_parts);
    }
    if (node.takes_keys()) {
      keyed += fmt::format("{}'{}'", keyed.empty() ? "" : "|", path);
    }
    if (takes_key_name(node)) {
      named += fmt::format("{}'{}'", named.empty() ? "" : "|", path);
    }
  });
  return fmt::format(R"(#compdef {0}
# zsh completion for {0}; written by `{0} completions zsh`.
_{0}() {{
  local -a keys parts options
  keys=({1})
  local path_words='' word i
  for ((i = 2; i <= CURRENT; i++)); do
    word=${{words[i]}}
    parts=()
    case $path_words in
{2}    esac
    (( i < CURRENT )) || break
    if [[ -n $word && -n ${{(M)parts:#${{word}}:*}} ]]; then
      path_words="$path_words${{path_words:+ }}$word"
    fi
  done
  # A configuration alone is a run of train.
  if [[ -z $path_words && $CURRENT -gt 2 ]]; then path_words=train; parts=(); fi
  case $path_words in
{3}  esac
  if [[ ${{words[CURRENT - 1]}} == --set ]]; then
    compadd -S '' -- $keys
  elif [[ ${{words[CURRENT]}} == -* ]]; then
    _describe option options
  else
    _describe command parts
    case $path_words in
      ({4}) compadd -S '' -- $keys ;;
      ({5}) compadd -- ${{keys%=}}; return ;;
    esac
    if [[ -z $path_words || ${{#parts}} == 0 ]]; then _files; fi
  fi
}}
if [[ ${{funcstack[1]}} == _{0} ]]; then _{0} "$@"; else compdef _{0} {0}; fi
)",
                     program.name, assignments(keys), parts, options, keyed, named);
}

std::string fish_completion(const CommandNode& program, const std::vector<std::string>& keys) {
  std::string text = fmt::format(
      "# fish completion for {0}; written by `{0} completions fish`.\n"
      "set -l keys {1}\n",
      program.name, assignments(keys));
  for_each_command(program, "", [&](const std::string& path, const CommandNode& node) {
    // The condition holds where all words of the part's path have been given.
    std::string condition = path.empty() ? "__fish_use_subcommand" : "";
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find(' ', begin), path.size());
      condition += fmt::format("{}__fish_seen_subcommand_from {}",
                               condition.empty() ? "" : "; and ", path.substr(begin, end - begin));
      begin = end + 1;
    }
    const std::string begin =
        fmt::format("complete -c {} -n {}", program.name, fish_quoted(condition));
    // Where a command has parts and none has been given, no file is offered.
    const std::string begin_parts =
        path.empty()
            ? begin
            : fmt::format("complete -c {} -n {} -f", program.name,
                          fish_quoted(fmt::format("{}; and not "
                                                  "__fish_seen_subcommand_from {}",
                                                  condition, fmt::join(part_names(node), " "))));
    for (const CommandNode& part : node.parts) {
      text += fmt::format("{} -a {} -d {}\n", begin_parts, part.name, fish_quoted(part.help));
    }
    for (const CommandOption& option : node.options) {
      if (option.is_positional()) {
        continue;
      }
      std::string names;
      for (const std::string& name : option.names) {
        names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      const bool takes_key = option.names.front() == "--set";
      text += fmt::format("{}{}{} -d {}\n", begin, names,
                          takes_key            ? " -x -a \"$keys\""
                          : option.takes_value ? " -r"
                                               : "",
                          fish_quoted(option.help));
    }
    if (node.takes_keys()) {
      text += fmt::format("{} -a \"$keys\"\n", begin);
    } else if (takes_key_name(node)) {
      text += fmt::format("{} -f -a (string replace -a = '' \"$keys\")\n", begin);
    }
  });
  return text;
}

}  // namespace fp8train
