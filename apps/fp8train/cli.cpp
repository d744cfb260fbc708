#include "cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/screen.h"
#include "base/text.h"
#include "comm/launch.h"
#include "config/foreign_names.h"
#include "config/show.h"
#include "train/watch/run_watchdog.h"

namespace fp8train {
namespace {

int report(const std::string& message, int code) {
  log_reported_error(message);
  const bool several = message.find('\n') != std::string::npos;
  print_fitted(stderr, "{}{}{}\n", colored(stderr, Color::red, "error:"), several ? "\n" : " ",
               without_controls(message));
  return code;
}

/// "--max-steps" and its kind of the command and of what it is part of.
std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

/// Suggests a name that is meant: an option, or a key where the command takes keys.
std::string advice_for_option(const CLI::App& app, const std::string& given) {
  const std::vector<std::string> names = option_names(app);
  const std::string name = given.substr(0, given.find('='));
  std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::replace(key.begin(), key.end(), '-', '_');
  const bool takes_keys = std::find(names.begin(), names.end(), "--set") != names.end();
  const std::vector<std::string> keys = config_keys();
  if (takes_keys && std::find(keys.begin(), keys.end(), key) != keys.end()) {
    return fmt::format("; did you mean {}=VALUE, without dashes?", key);
  }
  if (const std::string near = nearest_name(name, names); !near.empty()) {
    return fmt::format("; did you mean {}?", near);
  }
  const std::string advice = takes_keys ? advice_for_unknown_key("", key) : "";
  return advice.empty() ? "" : fmt::format("; keys are given as KEY=VALUE: {}", advice);
}

/// CLI11's message in the program's words.
std::string plain_refusal(const CLI::App& app, std::string message) {
  if (message == "A subcommand is required") {
    std::vector<std::string> names;
    for (const CLI::App* part : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(part->get_name());
    }
    return fmt::format("{}: a command is missing ({})", app.get_name(), fmt::join(names, ", "));
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->get_positional() && message.starts_with(name) &&
        (message[name.size()] == ' ' || message[name.size()] == ':')) {
      message.replace(0, name.size(), option->get_type_name());  // as in the usage line
    }
  }
  if (const size_t at = message.find(": 1 required "); at != std::string::npos) {
    const std::string name = message.substr(0, at);
    return name + (name == "--set" ? " needs a.b=v" : " needs a value");
  }
  return message;
}

/// Why CLI11 does not take the arguments.
std::string describe_refusal(const CLI::App& root, const CLI::ParseError& error) {
  std::string command = root.get_name();
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  std::string text = plain_refusal(*app, error.what());
  const std::vector<std::string> unexpected = root.remaining(true);
  const auto option = std::find_if(unexpected.begin(), unexpected.end(),
                                   [](const std::string& one) { return one.starts_with("-"); });
  if (option != unexpected.end()) {
    text = fmt::format("unknown option {}{}", *option, advice_for_option(*app, *option));
  } else if (!unexpected.empty()) {
    text = fmt::format("unexpected argument \"{}\"", unexpected.front());
  }
  return fmt::format("{}{} `{} --help` lists what it takes", text, text.ends_with('?') ? "" : ";",
                     command);
}

/// Warns where several processes do the same work.
void warn_of_processes(const CLI::App& app, const std::vector<Command>& commands) {
  const int processes = detect_launch().processes();
  for (const Command& command : commands) {
    if (command.works_alone && processes > 1 && rank_of_launcher() == 0 &&
        app.got_subcommand(command.name)) {
      log_warning(
          fmt::format("{} processes were started, and each does all of the work of `fp8train {}`: "
                      "start it once, without mpirun or srun",
                      processes, command.name));
    }
  }
}

std::atomic<bool> lacked_memory = false;

/// Operator new calls it instead of throwing.
[[noreturn]] void note_and_throw() {
  lacked_memory = true;
  throw std::bad_alloc();
}

[[noreturn]] void end_program() {
  // An exception that leaves a noexcept function of the standard library (the iterators of folders)
  // cannot be seen here.
  bool lacks_memory = lacked_memory && std::current_exception() == nullptr;
  try {
    if (const std::exception_ptr error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::bad_alloc&) {
    lacks_memory = true;
  } catch (...) {
    std::abort();
  }
  if (!lacks_memory) {
    std::abort();
  }
  constexpr std::string_view kMessage = "error: out of memory\n";
  [[maybe_unused]] const ssize_t done = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  std::_Exit(4);
}

}  // namespace

[[noreturn]] static void fail_unknown(const std::string& command,
                                      const std::vector<std::string>& commands) {
  const std::string near = nearest_name(command, commands);
  throw ConfigError(fmt::format(
      "unknown command \"{}\"{}", command,
      near.empty() ? "; fp8train --help lists them" : fmt::format("; did you mean \"{}\"?", near)));
}

std::vector<std::string> with_command(std::vector<std::string> arguments,
                                      const std::vector<std::string>& commands) {
  if (arguments.empty()) {
    return {"--help"};
  }
  const std::string first = arguments.front();
  const bool is_known = std::find(commands.begin(), commands.end(), first) != commands.end();
  if (first == "help" && (arguments.size() == 1 || !arguments[1].starts_with('-'))) {
    arguments.erase(arguments.begin());
    if (!arguments.empty() && std::ranges::find(commands, arguments.front()) == commands.end()) {
      fail_unknown(arguments.front(), commands);
    }
    arguments.emplace_back("--help");
    return arguments;
  }
  if (first == "-V" || first == "--version") {
    arguments.front() = "version";
    return arguments;
  }
  if (is_known || first == "-h" || first == "--help") {
    return arguments;
  }
  const bool is_file =
      first.find_first_of("./") != std::string::npos || std::filesystem::exists(first);
  if (first.starts_with("-") || is_assignment(first) || is_file) {
    arguments.insert(arguments.begin(), "train");
    return arguments;
  }
  fail_unknown(first, commands);
}

int run_guarded(const std::function<int()>& body, const std::string& who) {
  try {
    return body();
  } catch (const ConfigError& error) {
    return report(who + error.what(), kExitUsage);
  } catch (const DataError& error) {
    return report(who + error.what(), 3);
  } catch (const CheckpointError& error) {
    return report(who + error.what(), 4);
  } catch (const DeviceError& error) {
    return report(who + error.what(), 4);
  } catch (const TimeoutError& error) {
    return report(who + error.what(), kExitWatchdog);
  } catch (const CommError& error) {
    return report(who + error.what(), 4);
  } catch (const NumericError& error) {
    return report(who + error.what(), 5);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(who + fmt::format("{}: {}", error.path1().string(), error.code().message()), 4);
  } catch (const std::system_error& error) {  // of files, of threads and of fmt::print
    const bool is_thread = error.code() == std::errc::resource_unavailable_try_again;
    return std::ferror(stdout) != 0
               ? report(who + "standard output cannot be written: " + error.code().message(), 4)
           : is_thread ? report(who +
                                    "cannot start a thread: raise the limit of processes (ulimit "
                                    "-u, or that of the container)",
                                4)
                       : report(who + error.what(), 4);
  } catch (const std::bad_alloc&) {
    return report(who +
                      "out of memory; a run needs less with a smaller training.micro_batch_size or "
                      "model.recompute: block, and with token files of `fp8train data prepare` "
                      "instead of texts",
                  4);
  } catch (const std::exception& error) {
    return report(who + fmt::format("internal: {}", error.what()), 1);
  } catch (...) {
    return report(who + "internal: unknown exception", 1);
  }
}

int run_as_rank(Communicator& comm, const std::function<int(const EndRanks&)>& body) {
  std::optional<int> code;  // of the error that has been said
  const auto end_ranks = [&] {
    if (code) {
      return;
    }
    if (comm.rank() != 0) {
      std::this_thread::sleep_for(std::chrono::seconds(2));  // the first rank may say the same
    }
    const std::string who = comm.rank() == 0 ? "" : fmt::format("rank {}: ", comm.rank());
    code = run_guarded([]() -> int { throw; }, who);
    try {
      comm.fail(*code);
    } catch (const CommError&) {  // the end of this process ends the others
      return;
    }
  };
  try {
    return body(end_ranks);
  } catch (...) {
    end_ranks();
    return *code;
  }
}

int run_program(const std::vector<Command>& commands, std::vector<std::string> arguments) {
  report_memory_at_terminate();
  return run_guarded([&]() -> int {
    CLI::App app("Trains transformers in 8-bit floating point.", "fp8train");
    app.add_flag("-V,--version")->description("The same as the command version");
    app.footer("fp8train run.yaml");
    app.formatter_fn([](const CLI::App* command, const std::string&, CLI::AppFormatMode) {
      return help_page(*command);
    });
    app.set_help_flag("-h,--help", "Print this page and exit");
    app.require_subcommand(1);
    Action action;
    std::vector<std::string> names;
    for (const Command& command : commands) {
      names.emplace_back(command.name);
      CLI::App* const subcommand = app.add_subcommand(command.name, command.help);
      command.add(Arguments(*subcommand->footer(command.example)), action);
    }
    if (!arguments.empty() && arguments.front() == "complete") {  // for the scripts of shells
      arguments.erase(arguments.begin());
      fmt::print("{}", completions(app, arguments));
      return 0;
    }
    arguments = with_command(std::move(arguments), names);
    try {
      std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
      app.parse(arguments);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() != 0) {
        throw ConfigError(describe_refusal(app, error));
      }
      action = [&app, error] { return app.exit(error); };  // --help
    }
    warn_of_processes(app, commands);
    const int code = action();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw DeviceError("standard output cannot be written: is a disk full?");
    }
    return code;
  });
}

std::string command_line() {
  std::ifstream arguments("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string argument; std::getline(arguments, argument, '\0');) {
    const bool plain =
        !argument.empty() && argument.find_first_of(" \t\n'\"$&|;<>*?") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? argument : "'" + argument + "'");
  }
  return line;
}

void report_memory_at_terminate() {
  std::set_new_handler(note_and_throw);
  std::set_terminate(end_program);
}

}  // namespace fp8train
