#include "wizard/job_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/screen.h"
#include "base/text.h"

namespace fp8train {
namespace {

/// A template, line by line. Each change must find its line: a template that has lost one is a
/// mistake of ours.
class Script {
 public:
  explicit Script(const JobTemplate& source) : name_(source.name) {
    std::istringstream stream(source.text);
    for (std::string line; std::getline(stream, line);) {
      lines_.push_back(line);
    }
  }

  /// Sets `--option=` of sbatch, or of srun where the template has it there.
  void set(const std::string& option, const std::string& value) {
    const std::string begin = fmt::format("--{}=", option);
    const auto line = line_with(begin, [&](const std::string& text) {
      return (text.starts_with("#SBATCH ") || text.starts_with("srun ")) &&
             text.find(begin) != std::string::npos;
    });
    const size_t at = line->find(begin);
    const size_t end = std::min(line->find(' ', at), line->size());
    line->replace(at, end - at, begin + value);
  }

  /// An option that the template does not have; nothing for an empty value.
  void add(const std::string& option, const std::string& value) {
    const auto name = line_beginning("#SBATCH --job-name=");
    check(shell_word(value) == value || value.empty(), "an option of sbatch is a plain word");
    if (!value.empty()) {
      lines_.insert(name + 1, fmt::format("#SBATCH --{}={}", option, value));
    }
  }

  /// Lines below the last option of sbatch.
  void add_options(const std::vector<std::string>& options) {
    const auto last = std::find_if(lines_.rbegin(), lines_.rend(), [](const std::string& line) {
      return line.starts_with("#SBATCH ") || line.starts_with("##SBATCH ");
    });
    std::vector<std::string> lines;
    for (const std::string& option : options) {
      lines.push_back("#SBATCH " + option);
    }
    lines_.insert(last.base(), lines.begin(), lines.end());
  }

  /// In front of all commands.
  void add_command(const std::string& command) {
    lines_.insert(line_with("set -u", [](const std::string& line) { return line == "set -u"; }),
                  command);
  }

  /// Starts ranks in a container, as slurm/container.sbatch does.
  void set_container(const std::string& file, bool gpus) {
    constexpr std::string_view kProgram = " fp8train \"$config\"";
    const auto line = line_with("srun", [&](const std::string& text) {
      return text.starts_with("srun ") && text.find(kProgram) != std::string::npos;
    });
    line->insert(line->find(kProgram),
                 fmt::format(" apptainer exec {}--bind \"$PWD\" --pwd \"$PWD\" {}",
                             gpus ? "--nv " : "", shell_word(file)));
    add_command("export OMPI_MCA_btl_vader_single_copy_mechanism=none");
  }

  /// Options that the template has as "##SBATCH".
  void uncomment_options() {
    const auto first = line_beginning("##SBATCH ");
    std::for_each(first, lines_.end(), [](std::string& line) {
      if (line.starts_with("##SBATCH ")) line.erase(0, 1);
    });
  }

  /// Below the first line, and instead of how the template itself is submitted.
  void set_usage(const std::string& origin, const std::string& usage) {
    constexpr std::string_view kUsage = "#   sbatch ";
    const auto first = line_beginning(kUsage);
    *first = "#   " + usage;
    const auto is_usage = [&](const std::string& line) { return line.starts_with(kUsage); };
    lines_.erase(std::remove_if(first + 1, lines_.end(), is_usage), lines_.end());
    lines_.insert(lines_.begin() + 1, origin);
  }

  /// The configuration is no longer the first argument.
  void set_config(const std::string& path) {
    const auto line = line_with("config= before shift", [&](const std::string& text) {
      return text.starts_with("config=") && &text != &lines_.back() && *(&text + 1) == "shift";
    });
    *line = "config=" + shell_word(path);
    lines_.erase(line + 1);
  }

  std::string text() const {
    std::string result;
    for (const std::string& line : lines_) {
      check(!has_control(line), "a line of a job script has no control characters");
      result += line + "\n";
    }
    return result;
  }

 private:
  /// Returns the first line of which `matches` is true.
  template <typename Matches>
  std::vector<std::string>::iterator line_with(std::string_view what, const Matches& matches) {
    const auto found = std::find_if(lines_.begin(), lines_.end(), matches);
    if (found == lines_.end()) {
      throw InternalError(fmt::format("slurm/{}.sbatch has no {}", name_, what));
    }
    return found;
  }
  std::vector<std::string>::iterator line_beginning(std::string_view begin) {
    return line_with(begin, [&](const std::string& line) { return line.starts_with(begin); });
  }

  std::string name_;
  std::vector<std::string> lines_;
};

const JobTemplate& template_for(const Settings& settings) {
  const JobSettings& job = settings.job;
  const std::string several =
      settings.parallelism.zero_stage == 3 ? "multi_node_zero3" : "multi_node_ddp";
  const std::string name = job.requeue ? "requeue" : job.nodes > 1 ? several : "single_node";
  for (const JobTemplate& one : job_templates()) {
    if (one.name == name) {
      return one;
    }
  }
  throw InternalError(fmt::format("no job template {}", name));
}

}  // namespace

JobScript job_script(const Settings& settings, const std::string& config_path, bool gpus) {
  if (has_control(config_path)) {
    throw ConfigError(
        "the path of a configuration has no line breaks or other control characters: it is part of "
        "the job script");
  }
  const JobSettings& job = settings.job;
  const JobTemplate& source = template_for(settings);
  Script script(source);
  const std::string origin = fmt::format("slurm/{}.sbatch", source.name);
  const std::string own = job_script_path(config_path);
  script.set_usage(
      fmt::format("# {} on {} x {} ranks: by `fp8train config` from {}, see docs/use/slurm.md.",
                  config_path, job.nodes, job.ranks_per_node, origin),
      fmt::format("sbatch {} [key=value ...]", shell_word(own)));
  script.add("account", job.account);
  script.add("partition", job.partition);
  script.set("nodes", std::to_string(job.nodes));
  script.set("ntasks-per-node", std::to_string(job.ranks_per_node));
  script.set("cpus-per-task", std::to_string(job.cpus_per_rank));
  script.set("time", slurm_time(job.time_limit_seconds));
  if (gpus) {
    script.uncomment_options();
    script.set("gpus-per-node", std::to_string(job.ranks_per_node));
  }
  script.add_options(job.sbatch_extra);
  if (!job.modules.empty()) {
    check(std::ranges::all_of(job.modules,
                              [](const std::string& name) { return shell_word(name) == name; }),
          "a module is a plain word");
    script.add_command(fmt::format("module load {}", fmt::join(job.modules, " ")));
  }
  if (!job.container.empty()) {
    script.set_container(job.container, gpus);
  }
  script.set_config(config_path);
  return {origin, script.text()};
}

std::string job_script_path(const std::string& config_path) {
  return std::filesystem::path(config_path).replace_extension(".sbatch").string();
}

std::string slurm_time(double seconds) {
  const auto minutes = static_cast<int64_t>(std::ceil(seconds / 60));
  const int64_t hours = minutes / 60;
  const std::string rest =
      fmt::format("{:02}:{:02}:00", hours > 24 ? hours % 24 : hours, minutes % 60);
  return hours > 24 ? fmt::format("{}-{}", hours / 24, rest) : rest;
}

}  // namespace fp8train
