// fp8train config: the wizard that writes run.yaml and its job script; its parts show, explain and
// document configurations, and need no data and no device.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>

#include "base/error.h"
#include "base/screen.h"
#include "base/signals.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "config/show.h"
#include "data/text_source.h"
#include "output_path.h"
#include "precision/plan.h"
#include "wizard/job_script.h"
#include "wizard/wizard.h"
#include "wizard_memory.h"

namespace fp8train {
namespace {

struct ShowOptions {
  CommonOptions common;
  bool resolved = false;
  bool comments = false;
};

void add_show(Arguments parent, Action& action) {
  auto options = std::make_shared<ShowOptions>();
  Arguments show = parent.part("show", "Check a configuration and print it as YAML",
                               "fp8train config show --resolved run.yaml");
  add_common(show, options->common);
  show.flag("--resolved", options->resolved,
            "Every setting, not only those that differ from the defaults");
  show.flag("--comments", options->comments, "With a line of documentation per key");
  show.run(action, [options] {
    print_fitted("{}", show_settings(load(options->common), options->resolved, options->comments,
                                     columns_of(stdout)));
    return 0;
  });
}

void add_explain_key(Arguments parent, Action& action) {
  auto key = std::make_shared<std::string>();
  Arguments explain =
      parent.part("explain", "Explain one key or section", "fp8train config explain optimizer.lr");
  explain.required("key", *key, "Dotted key, such as optimizer.lr");
  explain.run(action, [key] {
    print_fitted("{}", explain_key(*key, columns_of(stdout)));
    return 0;
  });
}

/// A subcommand without options that prints a text.
void add_text(Arguments parent, Action& action, const char* name, const char* help,
              std::string (*text)()) {
  parent.part(name, help, fmt::format("fp8train config {}", name)).run(action, [text] {
    fmt::print("{}", text());
    return 0;
  });
}

std::string keys_text() {
  std::string result;
  for (const std::string& key : config_keys()) {
    result += key + "\n";
  }
  return result;
}

struct ConvertOptions {
  std::string file, base, output;
  bool overwrite = false;
};

/// The file's keys in the spelling of this program, over those of `base`, after comments that say
/// what each was read as and, where the file has a number of processes, how as many are started.
int convert(const ConvertOptions& options) {
  const Conversion conversion = convert_file(options.file, options.base);
  const size_t columns = options.output.empty() ? columns_of(stdout) : kColumns;
  std::string text;
  for (const std::string& note : conversion.notes) {
    text += wrapped("# " + note + "\n", columns);
  }
  if (conversion.processes > 1) {
    text += fmt::format(
        "# for {0} ranks:\n#   mpirun -n {0} fp8train ...\n"
        "#   srun --mpi=pmix -n {0} fp8train ...\n",
        conversion.processes);
  }
  text += (text.empty() ? "" : "\n") +
          commented_settings(conversion.settings, conversion.keys, columns);
  if (options.output.empty()) {
    print_fitted("{}", text);
    return 0;
  }
  check_output_file(options.output, options.overwrite);
  write_output_file(options.output, text);
  print_fitted("wrote {}\n", options.output);
  return 0;
}

void add_convert(Arguments parent, Action& action) {
  auto options = std::make_shared<ConvertOptions>();
  Arguments part =
      parent.part("convert", "Print another program's configuration in the keys of this one",
                  "fp8train config convert accelerate.yaml --output run.yaml");
  part.required_path("file", options->file, "YAML or JSON");
  part.path("--base", options->base, "A configuration whose keys the file replaces");
  part.path("--output", options->output, "The file to write, in place of standard output",
            PathUse::output);
  part.flag("--overwrite", options->overwrite, "With --output: replace a file that is there");
  part.run(action, [options] { return convert(*options); });
}

struct WizardOptions {
  std::string answers;
  std::string output = "run.yaml";
  bool overwrite = false;
  bool allow_misfit = false;
};

/// run.yaml, held against what was meant.
std::string run_file(const WizardResult& result) {
  std::string text = fmt::format(
      "# Written by `fp8train config`. Other keys: `fp8train config explain KEY`, "
      "docs/use/configuration.md.\n\n{}",
      commented_settings(result.settings, result.asked));
  LoadRequest request;
  request.path = result.output;
  request.text = text;
  check(load_settings(request) == result.settings, "run.yaml does not say what was answered");
  return text;
}

/// The commands to run next, in their order.
std::string next_commands(const WizardResult& result) {
  const JobSettings& job = result.settings.job;
  const std::string file = shell_word(result.output);
  if (job.slurm) {
    return fmt::format("  fp8train check {}\n  sbatch {}\n  tail -F fp8train-*.out\n", file,
                       shell_word(job_script_path(result.output)));
  }
  const int64_t ranks = job.nodes * job.ranks_per_node;
  return fmt::format("  fp8train check {}\n  {}fp8train {}\n  tail -F {}\n{}", file,
                     launcher_of(ranks), file,
                     shell_word(result.settings.output_dir + "/train.log"),
                     program_on_path("sbatch").empty()
                         ? ""
                         : "on this machine; with job.slurm: true a job script is written too\n");
}

void write_files(const WizardResult& result, bool gpus) {
  const bool slurm = result.settings.job.slurm;  // the script first: nothing is written if it fails
  const JobScript script = slurm ? job_script(result.settings, result.output, gpus) : JobScript{};
  write_output_file(result.output, run_file(result));
  print_fitted("wrote {}\n", result.output);
  if (slurm) {
    const std::string path = job_script_path(result.output);
    write_output_file(path, script.text);
    print_fitted("wrote {} (from {})\n", path, script.source);
  }
  print_fitted("next:\n{}", next_commands(result));
}

/// Files and folders that this machine does not have; the one that trains may.
std::string doubt_about(const std::string& key, const Settings& settings) {
  namespace fs = std::filesystem;
  std::error_code unseen;
  if (key == "model.from" && !settings.model.from.empty() &&
      !fs::is_regular_file(fs::path(settings.model.from) / "config.json", unseen)) {
    return fmt::format("there is no {}/config.json on this machine", settings.model.from);
  }
  for (const DataSource& source : settings.data.train) {
    if (source.format == kCommandFormat) {
      continue;
    }
    const bool pattern = source.path.find_first_of("*?[") != std::string::npos;
    const fs::path path = pattern ? fs::path(source.path).parent_path() : fs::path(source.path);
    if (key == "data.train" && !path.empty() && !fs::exists(path, unseen)) {
      return fmt::format("there is no {} on this machine", path.string());
    }
    if (key == "data.train" && !path.empty()) {
      try {
        expand_path(source.path);
      } catch (const DataError& error) {  // a folder without data files
        return error.what();
      }
    }
  }
  return "";
}

/// A job script where jobs can be submitted and the run is for other machines than this one, a
/// model that a processor trains in minutes where the run has no GPU, the recommended plan, the
/// fastest layout of several GPUs, or what fits into memory, and a new start at the limit of a run
/// that is longer.
std::string offer_here(const std::string& key, const Settings& settings, JobMemory& memory) {
  if (key == "job.slurm") {
    const JobSettings& job = settings.job;
    const bool is_for_others = job.nodes > 1 || job.names_gpu() || job.memory_gib > 0;
    return is_for_others && !program_on_path("sbatch").empty() ? "true" : "false";
  }
  if (std::string laid = memory.of_fastest_layout(key, settings); !laid.empty()) {
    return laid;
  }
  constexpr std::string_view kMemoryKeys[] = {"training.micro_batch_size", "model.recompute",
                                              "parallelism.zero_stage"};
  if (std::ranges::find(kMemoryKeys, key) != std::end(kMemoryKeys)) {
    const std::vector<Answer> answers = memory.fitting(settings).value_or(std::vector<Answer>());
    const auto answer = std::ranges::find(answers, key, &Answer::key);
    return answer == answers.end() ? "" : answer->value;
  }
  if (key == "job.requeue") {
    const double most = settings.training.max_time_seconds;
    const double limit = settings.job.time_limit_seconds;
    return memory.duration(settings) > (most > 0 ? std::min(most, limit) : limit) ? "true" : "";
  }
  if (key == "precision.plan") {
    return memory.recommended_plan(settings).plan;
  }
  const bool sized = !settings.model.from.empty() || settings.model.config.hidden_size > 0;
  return key == "model.preset" && !sized && !memory.on_gpus(settings) ? "nanogpt-laptop" : "";
}

/// Writes the files of a file of answers. Nobody can be asked, so a run that does not fit into
/// memory is an error.
int write_answered(const WizardOptions& options, const WizardResult& result, JobMemory& memory) {
  check_output_file(result.output, options.overwrite);
  if (result.settings.job.slurm) {
    check_output_file(job_script_path(result.output), options.overwrite);
  }
  print_fitted("{}\n", memory.line(result.settings));
  if (!options.allow_misfit && memory.fitting(result.settings)) {
    print_fitted(stderr,
                 "error: nothing was written, as the run does not fit into memory; change {}, or "
                 "write it with --allow-misfit\n",
                 options.answers);
    return kExitDevice;
  }
  write_files(result, memory.on_gpus(result.settings));
  return 0;
}

int run_wizard(const WizardOptions& options) {
  JobMemory memory;
  const WizardHooks hooks = {
      .memory = [&](const Settings& settings) { return memory.line(settings); },
      .offer = [&](const std::string& key,
                   const Settings& settings) { return offer_here(key, settings, memory); },
      .remark =
          [&](const std::string& key, const Settings& settings) {
            return key == "precision.plan" ? memory.plans(settings) : "";
          },
      .fitting = [&](const Settings& settings) { return memory.fitting(settings); },
      .doubt = doubt_about,
      .obstacle = [&](const Settings& settings) { return memory.obstacle(settings); },
      .unwritable = [](const std::string& path) { return why_no_file(path); },
      .stopped = [] { return stop_signal() != 0; },
      .exists = [](const std::string& path) { return std::filesystem::exists(path); }};
  const WizardStyle style = {
      .echo = isatty(STDIN_FILENO) == 0, .bold = has_colors(stdout), .columns = columns_of(stdout)};
  WizardResult result;
  if (!options.answers.empty()) {
    result = take_answers(answers_in_file(options.answers), hooks, options.answers, options.output);
    return write_answered(options, result, memory);
  }
  install_stop_handlers(WaitingCalls::end);  // Ctrl-C ends the reading of a line
  try {
    result = ask_settings(std::cin, std::cout, hooks, style, options.output);
  } catch (const InputEnded& ended) {
    const int signal = stop_signal();
    print_fitted(stderr, "{}: nothing was written\n", signal == 0 ? ended.what() : "stopped");
    return signal == 0 ? kExitUsage : 128 + signal;
  }
  restore_signal_handlers();
  print_fitted("\n");
  write_files(result, memory.on_gpus(result.settings));
  return 0;
}

void add_wizard(Arguments command, Action& action) {
  auto options = std::make_shared<WizardOptions>();
  command.path("--answers", options->answers,
               "Ask nothing: a YAML file with keys of run.yaml; keys that it leaves out have the "
               "defaults of the questions");
  command.path("--output", options->output,
               "The file to write; the job script is written next to it", PathUse::output);
  command.flag("--overwrite", options->overwrite, "With --answers: replace existing files");
  command.flag("--allow-misfit", options->allow_misfit,
               "With --answers: write a run that does not fit into memory too");
  command.run(action, [options] { return run_wizard(*options); });
}

}  // namespace

void add_config(Arguments command, Action& action) {
  add_wizard(command, action);
  add_show(command, action);
  add_convert(command, action);
  add_explain_key(command, action);
  add_text(command, action, "keys", "List all keys", keys_text);
  add_text(command, action, "list", "List the model presets",
           [] { return presets_text(columns_of(stdout)); });
  add_text(command, action, "docs", "Print the documentation page of all keys", configuration_page);
  command.parts_optional();
}

}  // namespace fp8train
