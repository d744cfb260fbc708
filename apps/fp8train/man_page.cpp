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

std::string upper(std::string text) {
  for (char& c : text) {
    c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c == '-' ? '_' : c;
  }
  return text;
}

std::string option_entry(const CommandOption& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) {
    names.push_back("\\fB" + escaped(name) + "\\fR");
  }
  const std::string& last = option.names.back();
  const std::string value =
      option.takes_value && !option.is_positional()
          ? " \\fI" + escaped(upper(last.substr(last.find_first_not_of('-')))) + "\\fR"
          : "";
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

constexpr const char* kRest = R"(.SH EXIT STATUS
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
.SH ENVIRONMENT
.TP
.B FP8TRAIN_SET
Keys and values that change the configuration, as with \fB\-\-set\fR.
.TP
.B FP8TRAIN_CPU_ISA
Lowers the level of instructions: x86\-64, x86\-64\-v3 or x86\-64\-v4; armv8\-a on Arm.
.TP
.B FP8TRAIN_CACHE_DIR
The folder of stored results, such as those of \fBgemm_tuning\fR; else ~/.cache/fp8train.
.TP
.B FP8TRAIN_GEMM_PROBE
\fBalways\fR: try the FP8 products of the GPU again, as if none were known from earlier starts.
.TP
.B OMP_NUM_THREADS
CPU threads of a rank, where \fBthreads\fR is 0.
.TP
.B NO_COLOR
If it is set and not empty, output in the terminal has no colours.
.SH EXAMPLES
.nf
fp8train config
fp8train check run.yaml
fp8train run.yaml
mpirun \-n 2 fp8train run.yaml training.max_steps=100
.fi
)";

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
  return text + kRest;
}

}  // namespace fp8train
