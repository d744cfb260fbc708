// fp8train(1), from the commands and their options.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_tree.h"

namespace fp8train {
namespace {

/// Text that troff takes as it is: hyphens are minus signs, a dot does not begin a line.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '\\'   ? std::string("\\e")
              : c == '-'  ? std::string("\\-")
              : c == '\'' ? std::string("\\(aq")
              : c == '"'  ? std::string("\\(dq")
              : c == '`'  ? std::string("\\(ga")
              : c == '\n' ? std::string(" ")
                          : std::string(1, c);
  }
  return result.starts_with('.') ? "\\&" + result : result;
}

std::string option_entry(const CommandOption& option) {
  std::vector<std::string> names;
  if (!option.argument.empty()) {
    names.push_back("\\fI" + escaped(option.argument) + "\\fR");
  }
  for (const std::string& name : option.names) {
    if (name.starts_with('-')) {
      names.push_back("\\fB" + escaped(name) + "\\fR");
    }
  }
  const std::string value =
      option.takes_value && !option.is_positional() ? " \\fI" + escaped(option.value) + "\\fR" : "";
  const std::string standard =
      option.default_value.empty() ? "" : fmt::format(" (default: {})", option.default_value);
  const std::string text = escaped(option.help + standard);
  return fmt::format(".TP\n{}{}\n{}\n", fmt::join(names, ", "), value, text.empty() ? "\\&" : text);
}

std::string entries(const CommandNode& node) {
  std::string text;
  for (const CommandOption& option : node.options) {
    const bool help = option.names.back() == "--help";  // of every command
    text += help ? "" : option_entry(option);
  }
  return text;
}

std::string sections(const CommandNode& node, const std::string& path) {
  std::string text =
      fmt::format(".SS {}\n{}.\n{}", escaped(path), escaped(node.help), entries(node));
  for (const CommandNode& part : node.parts) {
    text += sections(part, path + " " + part.name);
  }
  return text;
}

constexpr const char* kExitStatus = R"(.SH EXIT STATUS
.TP
0
Done.
.TP
1
A bug in the program.
.TP
2
The command line or the configuration.
.TP
3
The data.
.TP
4
A checkpoint, a device, memory or a disk; a problem that \fBdoctor\fR has found.
.TP
5
The training diverged.
.TP
75
Stopped on request, with a checkpoint saved; the same command continues.
.TP
86
A rank made no progress within its time limit.
.TP
129, 130, 143
A second SIGHUP, SIGINT or SIGTERM in a run, or one in \fBconfig\fR: ended at once.
)";

std::string environment() {
  std::string text = ".SH ENVIRONMENT\n";
  for (const auto& [names, help] : environment_variables()) {
    text += fmt::format(".TP\n.B {}\n{}\n", escaped(names), escaped(help));
  }
  return text;
}

std::string examples(const CommandNode& program) {
  std::string text = ".SH EXAMPLES\n.nf\n";
  for (const CommandNode& command : program.parts) {
    text += escaped(command.example) + "\n";
  }
  return text + ".fi\n";
}

}  // namespace

std::string man_page(const CommandNode& program, const std::string& version,
                     const std::string& date) {
  std::string text = fmt::format(
      ".TH FP8TRAIN 1 \"{3}\" \"fp8train {0}\" \"User Commands\"\n"
      ".SH NAME\n{1} \\- trains transformers in 8\\-bit floating point\n"
      ".SH SYNOPSIS\n.B {1}\n[\\fICOMMAND\\fR] [\\fIOPTIONS\\fR] [\\fIFILE\\fR] "
      "[\\fIKEY\\fR=\\fIVALUE\\fR ...]\n"
      ".SH DESCRIPTION\n"
      "Trains transformers under the precision plan that a YAML file names. A file without a "
      "command\n"
      "is a run of \\fBtrain\\fR; the same command again continues the run.\n"
      ".SH OPTIONS\n{2}.SH COMMANDS\n",
      escaped(version), escaped(program.name), entries(program), date);
  for (const CommandNode& command : program.parts) {
    text += sections(command, command.name);
  }
  return text + kExitStatus + environment() + examples(program);
}

}  // namespace fp8train
