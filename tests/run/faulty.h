#pragma once
// Runs of the program that can be asked for faults (support/faults.h), alone and on ranks.

#include <string>

#include "program.h"

namespace fp8train::test {

/// Environment of all these runs.
const Words& rank_environment();
/// mpirun with so many ranks.
Words mpirun(int ranks = 2);

/// A short run in the folder's `name`, without limits of its own.
Words toy_run(const std::string& name, const Words& more = {});
/// `words` with a fault, such as stop@RANK:STEP:SECTION.
Words with_fault(const std::string& fault, Words words);

/// Environment in which a call on files fails whose paths begin so, relative to `folder`
/// (support/file_faults): the `call`-th; 0: none, and all are written to `log`.
Words with_file_fault(const TextFolder& folder, const std::string& kind, const std::string& files,
                      long call, const fs::path& log = {});

/// Runs to the end, and requires the exit code.
Outcome run_faulty(const TextFolder& folder, const Words& launcher, const Words& words, int code,
                   const Words& environment = rank_environment());

/// Goes on with the run without faults, on two ranks, and requires the files of a run that none
/// has disturbed.
void check_resumed(const TextFolder& folder, const std::string& name);

}  // namespace fp8train::test
