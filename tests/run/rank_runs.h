#pragma once
// Runs of the program on several ranks, started by mpirun.

#include "program.h"

namespace fp8train::test {

inline constexpr long kSteps = 24;

/// Ranks wait without spinning: cores may be fewer than they.
inline const Words kEnvironment = {"OMP_NUM_THREADS=1", "OMPI_MCA_mpi_yield_when_idle=1",
                                   "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader"};

inline Words mpirun(int ranks) {
  return {FP8TRAIN_MPIRUN,      "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
          std::to_string(ranks)};
}

inline Words command(const std::string& plan, const std::string& name, const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.val_fraction=0.1",
                 "data.seq_length=32",
                 "training.max_steps=" + std::to_string(kSteps),
                 "training.micro_batch_size=2",
                 "training.global_batch_size=8",
                 "optimizer.lr=3e-3",
                 "scheduler.warmup_steps=4",
                 "eval.interval=10",
                 "eval.batches=4",
                 "sample.interval=16",
                 "sample.max_new_tokens=8",
                 "logging.interval=1",
                 "logging.format=plain",
                 "checkpoint.interval=8",
                 "parallelism.bucket_mb=1",
                 "comm.timeout=60",
                 "device=cpu",
                 "precision.plan=" + plan,
                 "output_dir=" + name};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline Outcome run(const TextFolder& folder, int ranks, const Words& words, int code = 0,
                   const Words& variables = {}) {
  Words environment = kEnvironment;
  environment.insert(environment.end(), variables.begin(), variables.end());
  Process process(folder.path(), words, environment, mpirun(ranks));
  Outcome outcome = process.wait();
  CAPTURE(outcome.out, outcome.err);
  REQUIRE(outcome.code == code);
  return outcome;
}

}  // namespace fp8train::test
