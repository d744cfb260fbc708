// Keys of the hardware that a run is planned for, and of the job that starts it.

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "base/screen.h"
#include "base/text.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "device/gpu_kinds.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr auto in_job = under(&Settings::job);

bool on_cpus(const Settings& settings) {
  return settings.device == DeviceChoice::cpu;
}

bool under_slurm(const Settings& settings) {
  return settings.job.slurm;
}

Field gpu_field() {
  std::vector<std::string> names = {"auto"};
  for (const GpuKind& kind : gpu_kinds()) {
    names.emplace_back(kind.name);
  }
  return choice("job.gpu", in_job(&JobSettings::gpu), names,
                "GPU that the run is for, unless device is cpu; auto: the device of this machine");
}

std::optional<std::string> read_job_word(const FieldValue& value, const std::string& what) {
  auto word = read_text(value, what);
  if (word && !word->empty() && shell_word(*word) != *word) {
    value.expected(what);
    return std::nullopt;
  }
  return word;
}

/// Options of the templates (slurm/*.sbatch), and the keys that set them; empty: none does.
constexpr std::pair<std::string_view, std::string_view> kScriptOptions[] = {
    {"nodes", "job.nodes"},
    {"ntasks-per-node", "job.ranks_per_node"},
    {"ntasks", "job.nodes and job.ranks_per_node"},
    {"gpus-per-node", "job.ranks_per_node"},
    {"cpus-per-task", "job.cpus_per_rank"},
    {"time", "job.time_limit"},
    {"account", "job.account"},
    {"partition", "job.partition"},
    {"signal", "job.requeue"},
    {"requeue", "job.requeue"},
    {"job-name", ""},
    {"exclusive", ""},
    {"mem", ""},
    {"output", ""},
    {"open-mode", ""},
    {"gpu-bind", ""}};

/// Complains about each option of a line that the script has already.
bool check_options(const FieldValue& value, std::string_view line) {
  for (size_t at = 0; at != std::string_view::npos; at = line.find(" --", at)) {
    at += line[at] == ' ' ? 3 : 2;
    const std::string_view name = line.substr(at, line.find_first_of("= ", at) - at);
    for (const auto& [known, key] : kScriptOptions) {
      if (name == known) {
        value.fail(fmt::format("the job script has --{} already{}", name,
                               key.empty() ? "; edit it there" : fmt::format(": set {}", key)));
        return false;
      }
    }
  }
  return true;
}

/// Options of sbatch as lines of a script; "#SBATCH " in front of one is left out.
std::optional<std::vector<std::string>> read_sbatch_options(const FieldValue& value,
                                                            const std::string& what) {
  auto options = from_yaml<std::vector<std::string>>(value, {.accepts = what});
  if (!options) {
    return options;
  }
  for (std::string& option : *options) {
    constexpr std::string_view kDirective = "#SBATCH ";
    if (option.starts_with(kDirective)) option.erase(0, kDirective.size());
    if (!option.starts_with("--") || option.size() < 3 || has_control(option)) {
      value.fail(fmt::format("`{}` is not an option of sbatch, such as --qos=high",
                             without_controls(option)));
      return std::nullopt;
    }
    if (!check_options(value, option)) {
      return std::nullopt;
    }
  }
  return options;
}

/// A list, or words with blanks between them.
std::optional<std::vector<std::string>> read_job_words(const FieldValue& value,
                                                       const std::string& what) {
  const auto texts = from_yaml<std::vector<std::string>>(value, {.accepts = what});
  std::vector<std::string> words;
  for (const std::string& text : texts.value_or(std::vector<std::string>{})) {
    std::ranges::move(split(text, ' '), std::back_inserter(words));
  }
  std::erase(words, "");
  const auto is_word = [](const std::string& word) {
    return word.front() != '-' && shell_word(word) == word;
  };
  if (texts && !std::ranges::all_of(words, is_word)) {
    value.expected(what);
    return std::nullopt;
  }
  return texts ? std::optional(words) : std::nullopt;
}

/// Lines of the script that only some sites need.
std::vector<Field> site_fields() {
  const auto question = [](const char* asked) {
    return Question{.topic = Topic::job, .text = asked, .when = under_slurm, .optional = true};
  };
  return {
      make("job.modules", "a list of names of modules",
           "Environment modules that the job script loads", in_job(&JobSettings::modules),
           read_job_words)
          .asked(question("Modules to load, - for none")),
      path("job.container", in_job(&JobSettings::container),
           "Container in which the job script starts each rank, with Apptainer (not tested)",
           "a path")
          .asked(question("Container of the ranks, - for none")),
      make("job.sbatch_extra", "a list of options that begin with --",
           "Further options of sbatch for the job script, as in [--qos=high, --mail-type=END]",
           in_job(&JobSettings::sbatch_extra), read_sbatch_options)
          .asked(question("Further options of sbatch, - for none")),
  };
}

}  // namespace

std::vector<Field> hardware_fields() {
  return {
      field("job.nodes", in_job(&JobSettings::nodes), between(1, 65536), "Machines that take part")
          .asked({.topic = Topic::hardware, .text = "Nodes"}),
      field("job.ranks_per_node", in_job(&JobSettings::ranks_per_node), between(1, 1024),
            "Processes on each node: one for each GPU, or for each socket of CPUs")
          .asked({.topic = Topic::hardware, .text = "Ranks per node"}),
      gpu_field().asked({.topic = Topic::hardware,
                         .text = "GPU to plan for",
                         .when = [](const Settings& s) { return !on_cpus(s); }}),
      field("job.memory_gib", in_job(&JobSettings::memory_gib), between(0, 1e6),
            "Memory of a node in GiB, if ranks run on CPUs; 0: that of this machine")
          .asked({.topic = Topic::hardware,
                  .text = "Memory of a node in GiB, 0 for this machine's",
                  .when = on_cpus}),
  };
}

std::vector<Field> slurm_fields() {
  // They become words of a script that a shell reads.
  constexpr const char* kWord = "a word of letters, digits and _ . / - + = : , @ %";
  const std::vector<Field> fields = {
      field("job.slurm", in_job(&JobSettings::slurm), "Whether a job script for Slurm is written")
          .asked({.topic = Topic::job, .text = "Write a job script for Slurm"}),
      text("job.partition", in_job(&JobSettings::partition),
           "Slurm's partition; not set: its default", kWord, read_job_word)
          .asked({.topic = Topic::job,
                  .text = "Partition, - for Slurm's default",
                  .when = under_slurm,
                  .optional = true}),
      text("job.account", in_job(&JobSettings::account), "Slurm's account; not set: its default",
           kWord, read_job_word)
          .asked({.topic = Topic::job,
                  .text = "Account, - for Slurm's default",
                  .when = under_slurm,
                  .optional = true}),
      field("job.cpus_per_rank", in_job(&JobSettings::cpus_per_rank), between(1, 65536),
            "Cores that Slurm gives to a rank")
          .asked({.topic = Topic::job, .text = "Cores per rank", .when = under_slurm}),
      field("job.time_limit", in_job(&JobSettings::time_limit_seconds), seconds("3h50m"),
            "Time after which Slurm ends the job")
          .asked({.topic = Topic::job, .text = "Time limit", .when = under_slurm}),
      field(
          "job.requeue", in_job(&JobSettings::requeue),
          "The job saves shortly before its time limit, queues itself again and continues; it also "
          "survives the loss of a node. The wizard offers true for a run that it estimates to be "
          "longer than the limit")
          .asked(
              {.topic = Topic::job, .text = "Queue again at the time limit", .when = under_slurm}),
      field("job.mtbf", in_job(&JobSettings::mtbf_seconds), seconds("3h50m", true),
            "Mean time between failures of the whole job, for checkpoint.interval auto. Not "
            "set: 9000 hours divided by the number of ranks"),
  };
  return concat({fields, site_fields()});
}

}  // namespace fp8train
