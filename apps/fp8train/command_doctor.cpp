// fp8train doctor: is this machine ready for a run, and what is to be done about it.

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/machine.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "comm/launch.h"
#include "commands.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_libraries.h"
#include "device/device.h"
#include "device/gpu_monitor.h"
#include "output_path.h"
#include "variables.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

constexpr double kGib = 1 << 30;
constexpr int kExitProblem = 4;

enum class Health { ok, warning, problem };

std::string_view name_of(Health health) {
  return health == Health::ok ? "ok" : health == Health::warning ? "warning" : "problem";
}

struct Finding {
  std::string name;                  ///< "driver", "memlock"
  std::string text;                  ///< what there is
  std::string fix;                   ///< what to do about it; empty where nothing is to be done
  Health unfixed = Health::warning;  ///< what it is as long as that is not done

  Health health() const { return fix.empty() ? Health::ok : unfixed; }
};

Finding processor(const Machine& machine) {
  const std::string level = cpu_level();
  Finding finding = {"processor", fmt::format("{}, {}", machine.processor, level), ""};
  if (level == "x86-64") {
    finding.fix =
        "without AVX2 runs on the CPU are several times slower: is FP8TRAIN_CPU_ISA set, or is "
        "this a virtual machine that hides it?";
  }
  return finding;
}

Finding cores(const Machine& machine) {
  Finding finding = {"cores",
                     fmt::format("{} of {} may be used", machine.usable_cores, machine.cores), ""};
  if (machine.quota_cores > 0) {
    finding.text += fmt::format("; the control group has the time of {:.3g}", machine.quota_cores);
  }
  const char* const given = std::getenv("OMP_NUM_THREADS");
  const long threads = given == nullptr ? 0 : std::strtol(given, nullptr, 10);
  if (threads > machine.usable_cores) {
    finding.fix = fmt::format("OMP_NUM_THREADS is {}: unset it or set at most {}", threads,
                              machine.usable_cores);
  } else if (machine.quota_cores > 0 &&
             machine.quota_cores + 0.5 < static_cast<double>(machine.usable_cores)) {
    finding.fix =
        fmt::format("set threads: {} (or OMP_NUM_THREADS), or give the container more CPU",
                    std::max(1, static_cast<int>(machine.quota_cores)));
  }
  return finding;
}

Finding memory(const Machine& machine) {
  Finding finding = {"memory",
                     fmt::format("{} of {} available", describe_bytes(machine.available_bytes),
                                 describe_bytes(machine.memory_bytes)),
                     ""};
  if (machine.memory_limit > 0) {
    finding.text +=
        fmt::format("; the control group is ended beyond {}", describe_bytes(machine.memory_limit));
    finding.fix =
        "plan with job.memory_gib, or ask for more (--mem=0 of Slurm, --memory of Docker)";
  }
  return finding;
}

bool is_built_with_cuda() {
  return version_text().find(" cuda") != std::string::npos;
}

Finding gpu() {
  const bool here = has_nvidia_gpu();
  if (!is_built_with_cuda()) {
    const bool nvcc = !program_on_path("nvcc").empty() || !access("/usr/local/cuda/bin/nvcc", X_OK);
    return {"gpu", "this program is built without CUDA",
            here || nvcc ? "build it with scripts/build.sh --cuda on: a GPU or nvcc is here" : ""};
  }
  const std::string obstacle = why_cuda_is_unusable();
  if (obstacle.empty()) {
    return {"gpu", make_device(DeviceKind::cuda)->description(), ""};
  }
  return here ? Finding{"gpu", "cannot be used", obstacle, Health::problem}
              : Finding{"gpu", "none: runs use the CPU", ""};
}

Finding driver(const Machine& machine) {
  if (!machine.nvidia_driver.empty()) {
    std::string text = "NVIDIA " + machine.nvidia_driver;
    for (const GpuState& gpu : GpuMonitor().all()) text += "; " + gpu.text();
    return {"driver", text, ""};
  }
  return {"driver", "no NVIDIA driver is loaded",
          has_nvidia_gpu() ? "in a container: start it with --gpus all (Docker) or --nv (Apptainer)"
                           : ""};
}

/// Without a GPU nothing is missing.
Finding library(CudaLibrary which, const char* name, Health without, const char* needed_for) {
  const OpenedLibrary& opened = cuda_library(which);
  if (opened.handle != nullptr) {
    return {name, fmt::format("{} ({})", opened.file, opened.origin), ""};
  }
  if (!has_nvidia_gpu()) {
    return {name, fmt::format("not found; GPUs need it for {}", needed_for), ""};
  }
  return {name, fmt::format("not found; needed for {}", needed_for), opened.why_not, without};
}

/// The first library among those that the process has opened whose name begins so.
std::string loaded(const std::string& name) {
  for (const std::string& file : loaded_libraries()) {
    if (fs::path(file).filename().string().starts_with(name)) {
      return file;
    }
  }
  return "";
}

Finding mpi() {
  const std::string file = loaded("libmpi");
  const std::string mpirun = program_on_path("mpirun");
  if (file.empty()) {
    return {"mpi", "this program is built without MPI",
            "runs of several ranks on CPUs need it: install libopenmpi-dev and build again"};
  }
  const std::string text =
      fmt::format("{}{}", file, mpirun.empty() ? "" : ", started by " + mpirun);
  if (mpirun.empty() && program_on_path("srun").empty()) {
    return {"mpi", text,
            "there is no mpirun and no srun on PATH: several ranks cannot be started here"};
  }
  return {"mpi", text, ""};
}

/// Returns the output of a command, errors included; empty if it does not start.
std::string output_of(const char* command) {
  std::string text;
  std::FILE* const pipe = popen(command, "r");
  std::array<char, 4096> part = {};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe) != nullptr) {
    text += part.data();
  }
  if (pipe != nullptr) {
    pclose(pipe);
  }
  return text;
}

/// Judges what `srun --mpi=list` prints: whether this program can use it.
Finding judge_process_managers(const std::string& listed) {
  const bool pmix = listed.find("pmix") != std::string::npos;
  std::string names;
  for (const char* name : {"pmix", "pmi2", "cray_shasta"}) {
    if (listed.find(name) != std::string::npos) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
  }
  const bool failed = listed.find("error") != std::string::npos;
  const std::string text = !names.empty() ? "srun knows " + names
                           : failed ? "srun --mpi=list: " + listed.substr(0, listed.find('\n'))
                                    : "srun knows no process manager";
  if (pmix) {
    return {"slurm", text + ": srun --mpi=pmix fp8train run.yaml", ""};
  }
  return {
      "slurm", text,
      "Open MPI's ranks find each other through PMIx: use mpirun within a job (sbatch, salloc), "
      "comm.bootstrap: file for ranks on GPUs, or have Slurm built with PMIx"};
}

/// Whether a controller is up by the reply of `scontrol ping`, which has a line for each, such as
/// "Slurmctld(primary) at n0 is UP". Before Slurm 18.08 one line is about both: "are UP/DOWN".
bool controller_is_up(const std::string& reply) {
  return std::ranges::any_of(split(reply, '\n'), [](const std::string& line) {
    const std::string text = trimmed(line);
    const std::vector<std::string> states = split(text.substr(text.rfind(' ') + 1), '/');
    return text.starts_with("Slurmctld(") && std::ranges::find(states, "UP") != states.end();
  });
}

/// srun lists process managers without a controller too, so that scontrol is asked first.
Finding slurm() {
  if (program_on_path("srun").empty()) {
    return {"slurm", "no srun on PATH", ""};
  }
  const bool can_ask = !program_on_path("scontrol").empty();
  if (can_ask && !controller_is_up(output_of("timeout 10 scontrol ping 2>&1"))) {
    return {"slurm", "Slurm's commands are installed, but no controller (slurmctld) answers",
            "jobs cannot be started from here: use a login node of a cluster, or name its "
            "configuration (SLURM_CONF); runs without Slurm do not need it"};
  }
  return judge_process_managers(output_of("timeout 10 srun --mpi=list 2>&1"));
}

/// Says whether a process manager has started the step that this process belongs to.
Finding process_manager() {
  const Launch launch = detect_launch();
  if (launch.slurm_step_tasks > 1 && !launch.manager && launch.mpi_ranks == 0) {
    return {"pmi", fmt::format("{} tasks were started, each alone", launch.slurm_step_tasks),
            "use `srun --mpi=pmix ...`, or comm.bootstrap: file for ranks on GPUs",
            Health::problem};
  }
  return {"pmi",
          launch.manager ? "a process manager has started this process"
                         : "started alone, without a process manager",
          ""};
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : describe_bytes(limit);
}

Finding memlock() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  std::error_code unseen;
  const bool pins = has_nvidia_gpu() || fs::exists("/sys/class/infiniband", unseen);
  if (limit.rlim_cur == RLIM_INFINITY || !pins) {
    return {"memlock", limit_text(limit.rlim_cur), ""};
  }
  return {"memlock", limit_text(limit.rlim_cur),
          "InfiniBand and GPUs pin memory: ulimit -l unlimited (LimitMEMLOCK=infinity in slurmd's "
          "unit, --ulimit memlock=-1 of Docker)"};
}

Finding open_files() {
  constexpr rlim_t kEnough = 1024;
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const bool enough = limit.rlim_cur >= kEnough;
  return {"open files",
          limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur),
          enough ? "" : "ranks on many nodes need a connection each: ulimit -n 4096"};
}

Finding stack() {
  constexpr rlim_t kEnough = 8U << 20;
  rlimit limit = {};
  getrlimit(RLIMIT_STACK, &limit);
  const bool enough = limit.rlim_cur >= kEnough;
  return {"stack", limit_text(limit.rlim_cur), enough ? "" : "ulimit -s 8192"};
}

Finding shared_memory() {
  struct statvfs info = {};
  if (statvfs("/dev/shm", &info) != 0 || access("/dev/shm", W_OK) != 0) {
    return {"/dev/shm", "cannot be written",
            "MPI and NCCL exchange through it: mount a tmpfs there", Health::problem};
  }
  const uint64_t all = uint64_t{info.f_blocks} * info.f_frsize;
  const uint64_t rest = uint64_t{info.f_bavail} * info.f_frsize;
  const bool enough = static_cast<double>(rest) >= 0.5 * kGib;
  return {"/dev/shm", fmt::format("{} of {} free", describe_bytes(rest), describe_bytes(all)),
          enough ? ""
                 : "several ranks on a node may need more: --shm-size=8g of Docker, or remove what "
                   "other programs have left there"};
}

Finding disk(const fs::path& folder) {
  constexpr long kTmpfs = 0x01021994;
  const fs::path path = nearest_existing(folder);
  const std::string obstacle = why_unwritable(folder);
  struct statvfs space = {};
  struct statfs kind = {};
  if (!obstacle.empty() || statvfs(path.c_str(), &space) != 0 || statfs(path.c_str(), &kind) != 0) {
    return {"disk", obstacle.empty() ? fmt::format("{} cannot be read", path.string()) : obstacle,
            "name another folder as output_dir", Health::problem};
  }
  const uint64_t rest = uint64_t{space.f_bavail} * space.f_frsize;
  const auto free_gib = static_cast<double>(rest) / kGib;
  Finding finding = {"disk", fmt::format("{} free in {}", describe_bytes(rest), path.string()), ""};
  if (free_gib < 1) {
    finding.unfixed = Health::problem;
    finding.fix = "checkpoints will not fit: free some space, or name another folder as output_dir";
  } else if (kind.f_type == kTmpfs) {
    finding.fix = "this is memory: what a run writes is lost when the machine restarts";
  } else if (free_gib < 10) {
    finding.fix =
        "a checkpoint has up to 16 bytes a parameter: free some space, or keep fewer of them "
        "(checkpoint.keep_last)";
  }
  return finding;
}

/// Returns a finding for each thing that runs have failed for, with the fix. Looks at the system
/// and starts srun for its process managers. `folder` is that of runs; it need not exist yet.
std::vector<Finding> examine_machine(const fs::path& folder) {
  const Machine machine = this_machine();
  std::vector<Finding> findings = {
      {"system", fmt::format("{}, {}", machine.host, machine.system), ""},
      processor(machine),
      {"variables", set_variables(), fix_of_variables(), Health::problem},
      cores(machine),
      memory(machine),
      gpu(),
      driver(machine)};
  if (is_built_with_cuda()) {
    findings.push_back(
        library(CudaLibrary::cublaslt, "cuBLASLt", Health::problem, "matrix products"));
    findings.push_back(library(CudaLibrary::cudnn, "cuDNN", Health::warning, "fast attention"));
    findings.push_back(library(CudaLibrary::nccl, "NCCL", Health::warning, "several GPUs"));
  }
  for (Finding (*look)() :
       {mpi, slurm, process_manager, memlock, open_files, stack, shared_memory}) {
    findings.push_back(look());
  }
  findings.push_back(disk(folder));
  return findings;
}

struct DoctorOptions {
  std::string folder = ".";
  bool json = false;
};

void print_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    all.push_back({{"name", one.name},
                   {"health", name_of(one.health())},
                   {"text", one.text},
                   {"fix", one.fix}});
  }
  fmt::print("{}\n", json_text(all, 2));
}

void print_lines(const std::vector<Finding>& findings) {
  for (const Finding& one : findings) {
    const std::string word = fmt::format("{:<8}", name_of(one.health()));
    print_fitted(
        "{} {:<11} {}\n",
        one.health() == Health::ok
            ? word
            : colored(stdout, one.health() == Health::warning ? Color::yellow : Color::red, word),
        one.name, one.text);
    if (!one.fix.empty()) {
      fmt::print("{}", wrapped("                     -> " + one.fix + "\n", columns_of(stdout)));
    }
  }
}

int examine(const DoctorOptions& options) {
  const std::vector<Finding> findings = examine_machine(options.folder);
  const auto count = [&](Health health) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& one) { return one.health() == health; });
  };
  const auto problems = count(Health::problem);
  if (options.json) {
    print_json(findings);
  } else {
    print_lines(findings);
    print_fitted("{} problem{}, {} warning{}\n", problems, problems == 1 ? "" : "s",
                 count(Health::warning), count(Health::warning) == 1 ? "" : "s");
  }
  return problems > 0 ? kExitProblem : 0;
}

}  // namespace

void add_doctor(Arguments command, Action& action) {
  auto options = std::make_shared<DoctorOptions>();
  command.path("folder FOLDER", options->folder, "Where runs put their files", PathUse::output);
  command.flag("--json", options->json, "Print a JSON list of objects: name, health, text, fix");
  command.run(action, [options] { return examine(*options); });
}

}  // namespace fp8train
