// What the run is planned for: hardware that is perhaps not here, and the job that starts it.

#include <optional>
#include <string>

#include "base/shell_word.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "device/gpu_kinds.h"

namespace fp8train {
namespace {

using namespace fields;

template <class Member>
auto job(Member member) {
  return in(&Settings::job, member);
}

bool on_cpus(const Settings& settings) {
  return settings.device == DeviceChoice::cpu;
}

bool on_gpus(const Settings& settings) {
  return !on_cpus(settings);
}

bool under_slurm(const Settings& settings) {
  return settings.job.slurm;
}

Field gpu_field() {
  std::vector<std::string> names = {"auto"};
  for (const GpuKind& kind : gpu_kinds()) {
    names.emplace_back(kind.name);
  }
  return choice("job.gpu", job(&JobSettings::gpu), names,
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

}  // namespace

std::vector<Field> hardware_fields() {
  return {
      integer("job.nodes", job(&JobSettings::nodes), between(1, 65536), "Machines that take part")
          .asked({.topic = Topic::hardware, .text = "Nodes", .changes_memory = true}),
      integer("job.ranks_per_node", job(&JobSettings::ranks_per_node), between(1, 1024),
              "Processes on each node: one for each GPU, or for each socket of CPUs")
          .asked({.topic = Topic::hardware, .text = "Ranks per node", .changes_memory = true}),
      gpu_field().asked({.topic = Topic::hardware,
                         .text = "GPU to plan for",
                         .when = on_gpus,
                         .changes_memory = true}),
      number("job.memory_gib", job(&JobSettings::memory_gib), between(0, 1e6),
             "Memory of a node in GiB, if ranks run on CPUs; 0: that of this machine")
          .asked({.topic = Topic::hardware,
                  .text = "Memory of a node in GiB, 0 for this machine's",
                  .when = on_cpus,
                  .changes_memory = true}),
  };
}

std::vector<Field> slurm_fields() {
  // They become words of a script that a shell reads.
  constexpr const char* kWord = "a word of letters, digits and _ . / - + = : , @ %";
  return {
      flag("job.slurm", job(&JobSettings::slurm), "Whether a job script for Slurm is written")
          .asked({.topic = Topic::job, .text = "Write a job script for Slurm"}),
      text("job.partition", job(&JobSettings::partition), "Slurm's partition; not set: its default",
           kWord, read_job_word)
          .asked({.topic = Topic::job,
                  .text = "Partition, - for Slurm's default",
                  .when = under_slurm,
                  .optional = true}),
      text("job.account", job(&JobSettings::account), "Slurm's account; not set: its default",
           kWord, read_job_word)
          .asked({.topic = Topic::job,
                  .text = "Account, - for Slurm's default",
                  .when = under_slurm,
                  .optional = true}),
      integer("job.cpus_per_rank", job(&JobSettings::cpus_per_rank), between(1, 65536),
              "Cores that Slurm gives to a rank")
          .asked({.topic = Topic::job, .text = "Cores per rank", .when = under_slurm}),
      duration("job.time_limit", job(&JobSettings::time_limit_seconds), "3h50m",
               "Time after which Slurm ends the job")
          .asked({.topic = Topic::job, .text = "Time limit", .when = under_slurm}),
      flag(
          "job.requeue", job(&JobSettings::requeue),
          "The job saves shortly before its time limit, queues itself again and continues; it also "
          "survives the loss of a node")
          .asked(
              {.topic = Topic::job, .text = "Queue again at the time limit", .when = under_slurm}),
      duration("job.mtbf", job(&JobSettings::mtbf_seconds), "3h50m",
               "Mean time between failures of the whole job, for checkpoint.interval auto. Not "
               "set: 9000 hours divided by the number of ranks",
               true),
  };
}

}  // namespace fp8train
