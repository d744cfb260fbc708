#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/screen.h"
#include "cli.h"
#include "config/show.h"

namespace fp8train {
namespace {

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

/// "-c" and "--config"; empty for an argument without a name.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) {
    names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    names.push_back("--" + name);
  }
  return names;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

/// The name of an argument, with dots where there may be several.
std::string argument_of(const CLI::Option& option, const char* dots) {
  const bool is_repeated = option.get_items_expected_max() > 1 && option.get_allow_extra_args();
  return option.get_type_name() + (is_repeated ? dots : "");
}

std::string usage(const CLI::App& command, const std::string& path) {
  std::string text = fmt::format("Usage: {} [OPTIONS]", path);
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) {
      const std::string name = argument_of(*option, "...");
      text += " " + (option->get_required() ? name : "[" + name + "]");
    } else if (option->get_required()) {
      text += fmt::format(" {} {}", names_of(*option).back(), option->get_type_name());
    }
  }
  if (!command.get_subcommands({}).empty()) {
    text += command.get_require_subcommand_min() > 0 ? " COMMAND" : " [COMMAND]";
  }
  return text + "\n";
}

std::string text_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty() && text.find("(default: ") == std::string::npos) {
    text += fmt::format("{}(default: {})", text.empty() ? "" : " ", option.get_default_str());
  }
  return text;
}

std::string arguments_and_options(const CLI::App& command) {
  std::string arguments, options;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> names = names_of(*option);
    const std::string value = takes_value(*option) ? " " + option->get_type_name() : "";
    if (option->get_positional()) {
      const std::string also = names.empty() ? "" : fmt::format("; or {}{}", names.back(), value);
      arguments += entry(argument_of(*option, " ..."), text_of(*option) + also);
    } else {
      options += entry(fmt::format("{}{}", fmt::join(names, ", "), value), text_of(*option));
    }
  }
  return (arguments.empty() ? "" : "\nArguments:\n" + arguments) + "\nOptions:\n" + options;
}

const CLI::App* part_named(const CLI::App& command, const std::string& name) {
  const auto found =
      command.get_subcommands([&](const CLI::App* part) { return part->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

/// The command or part that the words in front of the last one name.
const CLI::App& named_command(const CLI::App& program, const std::vector<std::string>& words) {
  const CLI::App* command = &program;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const CLI::App* const part = part_named(*command, words[i]);
    command = part == nullptr ? command : part;
  }
  const bool is_run = command == &program && words.size() > 1 && words[words.size() - 2] != "-v" &&
                      words[words.size() - 2] != "--verbose";
  return is_run ? *part_named(program, "train") : *command;
}

bool takes_value(const CLI::App& command, const std::string& name) {
  const CLI::Option* const option = command.get_option_no_throw(name);
  return option != nullptr && takes_value(*option);
}

/// Whether it explains keys that are given by their names.
bool takes_key_name(const CLI::App& command) {
  return std::ranges::any_of(command.get_options(), [](const CLI::Option* option) {
    return option->get_positional() && option->get_type_name() == "KEY";
  });
}

}  // namespace

std::string help_page(const CLI::App& command) {
  std::string path = command.get_name();
  for (const CLI::App* app = command.get_parent(); app != nullptr; app = app->get_parent()) {
    path.insert(0, app->get_name() + " ");
  }
  std::string text =
      command.get_description() + "\n" + usage(command, path) + arguments_and_options(command);
  const std::vector<const CLI::App*> parts = command.get_subcommands({});
  text += parts.empty() ? "" : "\nCommands:\n";
  for (const CLI::App* part : parts) {
    text += entry(part->get_name(), part->get_description());
  }
  if (command.get_parent() == nullptr) {
    text += "\nEnvironment variables:\n";
    for (const auto& [name, help] : kEnvironmentVariables) {
      text += entry(name, help);
    }
  }
  return wrapped(fmt::format("{}\nExample:\n  {}\n", text, command.get_footer()),
                 columns_of(stdout, kHelpColumns));
}

std::string completions(const CLI::App& program, const std::vector<std::string>& words) {
  const std::string current = words.empty() ? "" : words.back();
  const std::string previous = words.size() > 1 ? words[words.size() - 2] : "";
  const CLI::App& command = named_command(program, words);
  std::string lines;
  const auto offer = [&](const std::string& word, const std::string& help) {
    if (word.starts_with(current)) lines += word + (help.empty() ? "" : "\t" + help) + "\n";
  };
  const auto offer_keys = [&](const char* ending) {
    for (const std::string& key : config_keys()) offer(key + ending, "");
  };
  if (previous == "--set") {
    offer_keys("=");
  } else if (previous == "=" || (previous.starts_with('-') && takes_value(command, previous))) {
    lines = "FILES\n";
  } else if (current.starts_with('-')) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : names_of(*option)) offer(name, option->get_description());
    }
  } else {
    const std::vector<const CLI::App*> parts = command.get_subcommands({});
    for (const CLI::App* part : parts) offer(part->get_name(), part->get_description());
    if (command.get_option_no_throw("--set") != nullptr) offer_keys("=");
    if (takes_key_name(command)) {
      offer_keys("");
    } else if (parts.empty() || &command == &program) {
      lines += "FILES\n";  // a command that has parts takes no file
    }
  }
  return lines;
}

}  // namespace fp8train
