#include "command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/screen.h"

namespace fp8train {
namespace {

CommandOption option_of(const CLI::Option& option) {
  CommandOption result;
  for (const std::string& name : option.get_snames()) {
    result.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    result.names.push_back("--" + name);
  }
  if (result.names.empty()) {
    result.names.push_back(option.get_type_name());
  }
  result.help = option.get_description();
  result.value = option.get_type_name();
  result.argument = option.get_positional() ? result.value : "";
  result.is_required = option.get_required();
  result.is_repeated = option.get_items_expected_max() > 1 && option.get_allow_extra_args();
  result.default_value = option.get_default_str();
  result.takes_value = option.get_items_expected_max() > 0;
  return result;
}

CommandNode node_of(const CLI::App& app) {
  CommandNode node = {.name = app.get_name(),
                      .help = app.get_description(),
                      .example = app.get_footer(),
                      .needs_part = app.get_require_subcommand_min() > 0};
  for (const CLI::Option* option : app.get_options()) {
    node.options.push_back(option_of(*option));
  }
  for (const CLI::App* part : app.get_subcommands({})) {
    node.parts.push_back(node_of(*part));
  }
  return node;
}

constexpr size_t kHelpColumns = 80;
constexpr size_t kLongestLabel = 24;
constexpr std::pair<const char*, const char*> kEnvironmentVariables[] = {
    {"FP8TRAIN_SET", "a.b=v;c.d=w: changes keys of the configuration, as --set does"},
    {"FP8TRAIN_CPU_ISA",
     "Lowers the level of instructions: x86-64, x86-64-v3 or x86-64-v4; armv8-a on Arm"},
    {"FP8TRAIN_CPU_GEMM", "Units that multiply 16-bit operands and codes on a CPU: fp32 or bf16"},
    {"FP8TRAIN_CPU_PACK",
     "1: weights have copies that a CPU multiplies faster; 0: none; default: with bf16 units"},
    {"FP8TRAIN_CUDA_ATTENTION", "Attention on a GPU: own or cudnn"},
    {"FP8TRAIN_GEMM_PROBE",
     "always: tries the FP8 products of the GPU again, as if none were known from earlier starts"},
    {"FP8TRAIN_CACHE_DIR",
     "Folder of stored results, such as those of gemm_tuning; else ~/.cache/fp8train"},
    {"OMP_NUM_THREADS", "CPU threads of a rank, where threads is 0"},
    {"CUDA_HOME, LD_LIBRARY_PATH", "Where NVIDIA's libraries are looked for"},
    {"NO_COLOR", "If it is set and not empty, output in the terminal has no colours"}};

/// "  --gpu NAME   text", with the text on the next line where the label is long.
std::string entry(const std::string& label, const std::string& text) {
  const bool is_long = label.size() > kLongestLabel;
  return fmt::format("  {:<{}}{}{}\n", label, kLongestLabel + 2,
                     is_long ? fmt::format("\n{:{}}", "", kLongestLabel + 4) : "", text);
}

std::string usage(const CommandNode& node, const std::string& path) {
  std::string text = fmt::format("Usage: {} [OPTIONS]", path);
  for (const CommandOption& option : node.options) {
    const std::string name = option.argument + (option.is_repeated ? "..." : "");
    if (!option.argument.empty()) {
      text += " " + (option.is_required ? name : "[" + name + "]");
    } else if (option.is_required) {
      text += fmt::format(" {} {}", option.names.back(), option.value);
    }
  }
  if (!node.parts.empty()) {
    text += node.needs_part ? " COMMAND" : " [COMMAND]";
  }
  return text + "\n";
}

std::string text_of(const CommandOption& option) {
  std::string text = option.help;
  if (!option.default_value.empty() && text.find("(default: ") == std::string::npos) {
    text += fmt::format("{}(default: {})", text.empty() ? "" : " ", option.default_value);
  }
  return text;
}

std::string arguments_and_options(const CommandNode& node) {
  std::string arguments, options;
  for (const CommandOption& option : node.options) {
    const std::string value = option.takes_value ? " " + option.value : "";
    if (!option.argument.empty()) {
      const bool is_named = !option.is_positional();
      arguments += entry(
          option.argument + (option.is_repeated ? " ..." : ""),
          text_of(option) + (is_named ? fmt::format("; or {}{}", option.names.back(), value) : ""));
    } else {
      options += entry(fmt::format("{}{}", fmt::join(option.names, ", "), value), text_of(option));
    }
  }
  return (arguments.empty() ? "" : "\nArguments:\n" + arguments) + "\nOptions:\n" + options;
}

}  // namespace

bool CommandNode::takes_keys() const {
  return std::any_of(options.begin(), options.end(),
                     [](const CommandOption& one) { return one.names.front() == "--set"; });
}

bool CommandNode::takes_key_name() const {
  return std::any_of(options.begin(), options.end(),
                     [](const CommandOption& one) { return one.argument == "KEY"; });
}

CommandNode command_tree(const CLI::App& program) {
  return node_of(program);
}

std::string help_page(const CommandNode& node, const std::string& path) {
  std::string text = node.help + "\n" + usage(node, path) + arguments_and_options(node);
  if (!node.parts.empty()) {
    text += "\nCommands:\n";
    for (const CommandNode& part : node.parts) {
      text += entry(part.name, part.help);
    }
  }
  if (path.find(' ') == std::string::npos) {
    text += "\nEnvironment variables:\n";
    for (const auto& [name, help] : kEnvironmentVariables) {
      text += entry(name, help);
    }
  }
  return wrapped(fmt::format("{}\nExample:\n  {}\n", text, node.example),
                 columns_of(stdout, kHelpColumns));
}

std::string help_page(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* app = command.get_parent(); app != nullptr; app = app->get_parent()) {
    path.insert(0, app->get_name() + " ");
  }
  return help_page(node_of(command), path);
}

}  // namespace fp8train
