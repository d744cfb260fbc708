// fp8train doctor before a machine as it is and before fake programs.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "numeric/cpu_isa.h"
#include "program.h"

namespace fp8train::test {
namespace {

using nlohmann::json;

std::map<std::string, json> findings_of(const Outcome& outcome) {
  std::map<std::string, json> findings;
  for (const json& one : json::parse(outcome.out)) {
    findings[one.at("name").get<std::string>()] = one;
  }
  return findings;
}

TEST_CASE("every finding that is not ok has a fix, and problems are exit code 4") {
  const TempDir folder;
  const Outcome outcome = run_program(folder.path(), {"doctor", "--json"});
  const auto findings = findings_of(outcome);
  bool problem = false;
  for (const auto& [name, one] : findings) {
    CAPTURE(name, one.dump());
    CHECK_FALSE(one.at("text").get<std::string>().empty());
    CHECK((one.at("health") == "ok") == one.at("fix").get<std::string>().empty());
    problem = problem || one.at("health") == "problem";
  }
  CHECK(outcome.code == (problem ? 4 : 0));
  for (const char* name : {"processor", "variables", "cores", "memory", "gpu", "driver", "mpi",
                           "slurm", "pmi", "memlock", "open files", "stack", "/dev/shm", "disk"}) {
    CAPTURE(name);
    CHECK(findings.contains(name));
  }
}

TEST_CASE("a folder that cannot be written into is a problem") {
  const TempDir folder;
  const Outcome outcome = run_program(folder.path(), {"doctor", "/proc/none", "--json"});
  CHECK(outcome.code == 4);
  CHECK(findings_of(outcome).at("disk").at("health") == "problem");
  CHECK_THAT(findings_of(outcome).at("disk").at("text").get<std::string>(),
             Catch::Contains("/proc cannot be written to"));
  const Outcome lines = run_program(folder.path(), {"doctor", "/proc/none"});
  CHECK(lines.code == 4);
  CHECK_THAT(lines.out, Catch::Contains("\nproblem  disk        ") &&
                            Catch::Contains("\n                     -> "));
}

TEST_CASE("a variable with a value that runs refuse is a problem") {
  const TempDir folder;
  const auto variables_with = [&](const Words& environment) {
    return findings_of(run_program(folder.path(), {"doctor", "--json"}, environment))
        .at("variables");
  };
  CHECK(variables_with({"FP8TRAIN_CPU_PACK=1", "FP8TRAIN_CPU_GEMM=fp32"}).at("health") == "ok");
  CHECK(variables_with({"FP8TRAIN_SET=training.max_steps=4;optimizer.lr=1e-3"}).at("health") ==
        "ok");
  CHECK(variables_with({"FP8TRAIN_SET=parallelism.schedule_file=f"}).at("health") == "ok");
  CHECK(variables_with({"FP8TRAIN_SET=model.rope_scaling.factor=16"}).at("health") == "ok");
  CHECK(variables_with({"FP8TRAIN_SET=model.rope_scaling.factor=-1"}).at("health") == "problem");
  for (const char* fits_some_file :
       {"precision.plan=fp8-safe;precision.moment1=bf16", "fp8.recipe=ROWWISE", "fp8.opt_level=O3",
        "fp8.recipe=O2", "fp8.backend=torchao", "precision.master_weight=none",
        "precision.schedule=[{until: 0.5, plan: bf16}, {plan: te-current}]"}) {
    CAPTURE(fits_some_file);
    CHECK(variables_with({std::string("FP8TRAIN_SET=") + fits_some_file}).at("health") == "ok");
  }
  for (const auto& [wrong, why] :
       {std::pair{"precision.plan=te-curent", "did you mean te-current?"},
        {"precision.layers={'layers.0.*': te-curent}", "precision.layers: no plan 'te-curent'"},
        {"precision.schedule=[{until: 0.5, plan: x}, {plan: bf16}]", "precision.schedule: no plan"},
        {"fp8.recipe=rowise", "fp8.recipe: no plan for"},
        {"fp8.backend=torch", "fp8.backend: no plan for"},
        {"fp8.opt_level=O9", "fp8.opt_level: no plan for"},
        {"precision.moment1=e4m9", "precision.moment1: "}}) {
    CAPTURE(wrong);
    const json found = variables_with({std::string("FP8TRAIN_SET=") + wrong});
    CHECK(found.at("health") == "problem");
    CHECK_THAT(found.at("fix").get<std::string>(), Catch::Contains(why));
  }
  CHECK_THAT(variables_with({"FP8TRAIN_CACHE_DIR=/tmp"}).at("text").get<std::string>(),
             Catch::Contains("FP8TRAIN_CACHE_DIR=/tmp"));
  for (const char* wrong :
       {"FP8TRAIN_CPU_PACK=yes", "FP8TRAIN_CPU_GEMM=fp16", "FP8TRAIN_CPU_ISA=sse"}) {
    const json found = variables_with({wrong});
    CHECK(found.at("health") == "problem");
    CHECK_THAT(found.at("text").get<std::string>(), Catch::Contains(wrong));
    CHECK_THAT(
        found.at("fix").get<std::string>(),
        Catch::Contains(std::string(wrong).substr(0, std::string(wrong).find('=')) + " to "));
  }
  const json found = variables_with({"FP8TRAIN_SET=devic=cpu;optimizer.lr=-1"});
  CHECK(found.at("health") == "problem");
  CHECK(found.at("fix") ==
        "FP8TRAIN_SET devic=cpu: devic: unknown key; did you mean \"device\"?; FP8TRAIN_SET "
        "optimizer.lr=-1: optimizer.lr: expected a number > 0, got \"-1\"");
}

TEST_CASE("limits of the shell are seen") {
  const TempDir folder;
  const Words launcher = {"/bin/sh", "-c", "ulimit -n 100; ulimit -s 4096; exec \"$0\" \"$@\""};
  const auto findings =
      findings_of(Process(folder.path(), {"doctor", "--json"},
                          {"OMP_NUM_THREADS=4000",
                           "FP8TRAIN_CPU_ISA=" + std::string(name_of(cpu_isas().front()))},
                          launcher)
                      .wait());
  for (const char* name : {"open files", "stack", "cores"}) {
    CAPTURE(name);
    CHECK(findings.at(name).at("health") == "warning");
  }
  const bool lower = cpu_isas().size() > 1;  // of Arm there is one level
  CHECK(findings.at("processor").at("health") == (lower ? "warning" : "ok"));
  CHECK(findings.at("open files").at("text") == "100");
}

TEST_CASE("a program without CUDA next to nvcc is a warning") {
  const TempDir folder;
  write_file(folder / "nvcc", "#!/bin/sh\n");
  fs::permissions(folder / "nvcc", fs::perms::owner_all);
  const json gpu = findings_of(Process(folder.path(), {"doctor", "--json"},
                                       {"PATH=" + folder.path().string() + ":/usr/bin:/bin"}, {},
                                       FP8TRAIN_FAULTY_PROGRAM)
                                   .wait())
                       .at("gpu");
  CHECK(gpu.at("text") == "this program is built without CUDA");
  CHECK(gpu.at("health") == "warning");
  CHECK(gpu.at("fix") == "build it with scripts/build.sh --cuda on: a GPU or nvcc is here");
}

TEST_CASE("srun is asked for its process managers where a controller answers") {
  const TempDir folder;
  fs::create_directory(folder / "bin");
  write_file(folder / "bin" / "srun",
             "#!/bin/sh\necho 'MPI plugin types are...'\necho \"$KINDS\"\n");
  write_file(folder / "bin" / "scontrol", "#!/bin/sh\necho \"$PING\"\n");
  for (const char* program : {"srun", "scontrol"}) {
    fs::permissions(folder / "bin" / program, fs::perms::owner_all);
  }
  const std::string path = "PATH=" + (folder / "bin").string() + ":/usr/bin:/bin";
  const auto slurm = [&](const std::string& kinds,
                         const std::string& ping = "Slurmctld(primary) at n0 is UP") {
    return findings_of(Process(folder.path(), {"doctor", "--json"},
                               {path, "KINDS=" + kinds, "PING=" + ping})
                           .wait())
        .at("slurm");
  };
  for (const char* ping :
       {"Slurmctld(primary) at n0 is DOWN", "Slurmctld(primary) at UP is DOWN",
        "Slurmctld(primary) at n0 is DOWN\nSlurmctld(backup) at n1 is DOWN",
        "Slurmctld(primary/backup) at n0/(NULL) are DOWN/DOWN", "scontrol: error: host UP", "", " ",
        "scontrol: fatal: Could not establish a configuration source"}) {
    CAPTURE(ping);
    const json client = slurm("none pmi2 pmix", ping);
    CHECK(client.at("health") == "warning");
    CHECK_THAT(client.at("text").get<std::string>(), Catch::Contains("no controller"));
    CHECK_THAT(client.at("fix").get<std::string>(), Catch::Contains("login node"));
  }
  for (const char* ping : {"Slurmctld(primary) at n0 is UP", "Slurmctld(primary) at n0 is UP\r",
                           "Slurmctld(primary) at n0 is DOWN\nSlurmctld(backup) at n1 is UP",
                           "Slurmctld(primary/backup) at n0/(NULL) are UP/DOWN"}) {
    CAPTURE(ping);
    CHECK(slurm("none pmi2 pmix_v4 pmix", ping).at("health") == "ok");
  }
  CHECK(slurm("none pmi2").at("health") == "warning");
  CHECK_THAT(slurm("none pmi2").at("text").get<std::string>(), Catch::Contains("pmi2"));
  const Outcome alone =
      Process(folder.path(), {"doctor", "--json"}, {"SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4"})
          .wait();
  CHECK(alone.code == 4);
  CHECK(findings_of(alone).at("pmi").at("health") == "problem");
}

}  // namespace
}  // namespace fp8train::test
