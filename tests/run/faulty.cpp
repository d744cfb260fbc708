#include "faulty.h"

#include <array>
#include <catch2/catch.hpp>

namespace fp8train::test {
namespace {

constexpr std::array<const char*, 2> kFiles = {"model.safetensors", "optimizer.safetensors"};

fs::path last_checkpoint(const TextFolder& folder, const std::string& name) {
  return folder / name / "checkpoints" / "step-000020";
}

/// Of toy_run() on two ranks: kFiles of its last checkpoint. Made once.
const std::array<std::string, 2>& undisturbed() {
  static const std::array<std::string, 2> files = [] {
    const TextFolder folder;
    run_faulty(folder, mpirun(), toy_run("whole"), 0);
    const fs::path checkpoint = last_checkpoint(folder, "whole");
    return std::array{read_file(checkpoint / kFiles[0]), read_file(checkpoint / kFiles[1])};
  }();
  return files;
}

}  // namespace

const Words& rank_environment() {
  static const Words environment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                                    "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};
  return environment;
}

Words mpirun(int ranks) {
  return {FP8TRAIN_MPIRUN,      "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
          std::to_string(ranks)};
}

Words toy_run(const std::string& name, const Words& more) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.val_fraction=0.1",
                 "data.seq_length=32",
                 "training.max_steps=20",
                 "training.micro_batch_size=2",
                 "training.global_batch_size=8",
                 "eval.interval=10",
                 "eval.batches=4",
                 "logging.interval=5",
                 "checkpoint.interval=5",
                 "device=cpu",
                 "precision.plan=bf16",
                 "output_dir=" + name};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words with_fault(const std::string& fault, Words words) {
  words.insert(words.begin(), {"--fault", fault});
  return words;
}

Words with_file_fault(const TextFolder& folder, const std::string& kind, const std::string& files,
                      long call, const fs::path& log) {
  Words environment = rank_environment();
  environment.insert(
      environment.end(),
      {std::string("LD_PRELOAD=") + FP8TRAIN_FILE_FAULTS,
       "FP8TRAIN_FAULT_FOLDER=" + (folder / files).string(), "FP8TRAIN_FAULT_KIND=" + kind,
       "FP8TRAIN_FAULT_LOG=" + log.string(), "FP8TRAIN_FAULT_CALL=" + std::to_string(call)});
  return environment;
}

Outcome run_faulty(const TextFolder& folder, const Words& launcher, const Words& words, int code,
                   const Words& environment) {
  Process process(folder.path(), words, environment, launcher, FP8TRAIN_FAULTY_PROGRAM);
  Outcome outcome = process.wait();
  CAPTURE(outcome.out, outcome.err);
  REQUIRE(outcome.code == code);
  return outcome;
}

void check_resumed(const TextFolder& folder, const std::string& name) {
  run_faulty(folder, mpirun(), toy_run(name), 0);
  for (size_t i = 0; i < kFiles.size(); ++i) {
    INFO(kFiles[i]);
    CHECK((read_file(last_checkpoint(folder, name) / kFiles[i]) == undisturbed()[i]));
  }
}

}  // namespace fp8train::test
