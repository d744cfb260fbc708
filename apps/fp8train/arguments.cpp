// The options of commands, in terms of CLI11.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "base/text.h"
#include "base/written_path.h"
#include "cli.h"
#include "comm/launch.h"
#include "device/gpu_kinds.h"

namespace fp8train {
namespace {

/// A text that is not a number is left to the conversion that follows. NaN is below everything.
std::function<std::string(const std::string&)> at_least(double least) {
  return [least](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool number = end != text.c_str() && *end == '\0';
    return number && !(value >= least) ? fmt::format("{} is below {}", text, least) : std::string();
  };
}

/// Expands the path that an option gets, or says why it does not.
CLI::Validator expanded(PathUse use) {
  const auto expand = [use](std::string& text) {
    const WrittenPath written = written_path(text, use);
    text = written.problem.empty() ? written.path : text;
    return written.problem;
  };
  return {expand, ""};
}

/// The names of "--gpu NAME", and what its value is called: `usual` or the last name where that is
/// not said.
std::pair<std::string, std::string> named(const std::string& text, const std::string& usual) {
  const size_t blank = text.find(' ');
  const std::string names = text.substr(0, blank);
  std::string value = blank != std::string::npos ? text.substr(blank + 1) : usual;
  if (value.empty()) {
    value = split(names, ',').back();
    value.erase(0, value.find_first_not_of('-'));
    std::ranges::transform(value, value.begin(), [](char c) {
      return c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    });
  }
  return {names, value};
}

}  // namespace

template <class Target>
CLI::Option* Arguments::add(const char* name, Target& target, const std::string& help,
                            const char* usual) {
  const auto [names, value] = named(name, usual);
  return app_->add_option(names, target, help)->type_name(value);
}

void Arguments::option(const char* name, std::string& target, const std::string& help) {
  add(name, target, help)->capture_default_str();
}

void Arguments::option(const char* name, std::optional<std::string>& target,
                       const std::string& help) {
  const auto [names, value] = named(name, "");
  app_->add_option_function<std::string>(
          names, [&target](const std::string& text) { target = text; }, help)
      ->type_name(value);
}

void Arguments::option(const char* name, int64_t& target, int64_t least, const std::string& help) {
  CLI::Option* option = add(name, target, help, "N");
  option->check(at_least(static_cast<double>(least)));
  if (target >= least) option->capture_default_str();  // else `help` says what it is
}

void Arguments::option(const char* name, uint64_t& target, const std::string& help) {
  add(name, target, help, "N")->capture_default_str()->check(at_least(0));
}

void Arguments::option(const char* name, double& target, double least, const std::string& help) {
  add(name, target, help, "X")->capture_default_str()->check(at_least(least));
}

void Arguments::required(const char* name, std::string& target, const std::string& help) {
  add(name, target, help)->required();
}

void Arguments::path(const char* name, std::string& target, const std::string& help, PathUse use) {
  add(name, target, help, "FILE")->capture_default_str()->transform(expanded(use));
}

void Arguments::required_path(const char* name, std::string& target, const std::string& help,
                              PathUse use) {
  add(name, target, help, "FILE")->required()->transform(expanded(use));
}

void Arguments::required_paths(const char* name, std::vector<std::string>& targets,
                               const std::string& help) {
  add(name, targets, help)->required()->transform(expanded(PathUse::input));
}

void Arguments::list(const char* name, std::vector<std::string>& targets, const std::string& help) {
  // Without expected(1) it would swallow the positionals behind it.
  add(name, targets, help)->expected(1)->take_all()->allow_extra_args(false);
}

void Arguments::flag(const char* name, bool& target, const std::string& help) {
  app_->add_flag(name, target, help);
}

Arguments Arguments::part(const char* name, const std::string& help, const std::string& example) {
  app_->require_subcommand(1);
  return Arguments(*app_->add_subcommand(name, help)->footer(example));
}

void Arguments::parts_optional() {
  app_->require_subcommand(0, 1);
}

void Arguments::run(Action& action, Action work) {
  app_->callback([&action, app = app_, work = std::move(work)] {
    if (app->get_subcommands().empty()) {
      action = work;
    }
  });
}

void Arguments::run_in_first(Action& action, const Action& work) {
  run(action, [work] { return rank_of_launcher() > 0 ? 0 : work(); });
}

void add_common(Arguments command, CommonOptions& options) {
  command.path("-c,--config", options.config, "YAML file that describes the run");
  command.list("--set KEY=VALUE", options.sets, "Change one key (repeatable; the value in YAML)");
  for (const auto& [key, value] : {std::pair("output_dir", "FOLDER"),
                                   {"training.max_steps", "N"},
                                   {"training.max_time", "DURATION"},
                                   {"training.seed", "N"},
                                   {"device", "DEVICE"},
                                   {"threads", "N"}}) {
    const std::string name = replaced(split(key, '.').back(), "_", "-");
    command.option(fmt::format("--{} {}", name, value).c_str(), options.shortcuts[key],
                   fmt::format("Short for --set {}=", key));
  }
  command.app().add_flag("-v,--verbose", options.verbose, "Print more");
  command.flag("-q,--quiet", options.quiet, "Print warnings and errors only");
  command.app()
      .add_option("file_or_set", options.positionals, "YAML files, and keys to change")
      ->type_name("FILE|KEY=VALUE");
}

void add_ranks(Arguments command, RankOptions& options) {
  add_common(command, options.common);
  command.option("--world-size", options.world_size, 1,
                 "Ranks of the run (default: those that were started by mpirun or srun; else those "
                 "of the job; where that is 1, num_processes of another program's file)");
  command.option("--ranks-per-node", options.ranks_per_node, 1,
                 "Ranks on a node (default: job.ranks_per_node; 8 where the number of ranks is not "
                 "that of the job)");
}

void add_gpu(Arguments command, std::string& gpu) {
  std::vector<std::string_view> gpus;
  for (const GpuKind& kind : gpu_kinds()) {
    gpus.push_back(kind.name);
  }
  command.option("--gpu", gpu, alternatives(gpus) + "; else job.gpu, unless device is cpu");
}

}  // namespace fp8train
