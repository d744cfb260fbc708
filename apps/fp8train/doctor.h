#pragma once
// What `fp8train doctor` finds out about a machine: one line for each thing that runs have failed
// for, with the fix. It looks at the system and starts srun for its list of process managers.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

enum class Health { ok, warning, problem };
std::string_view name_of(Health health);

struct Finding {
  std::string name;  ///< "driver", "memlock"
  Health health = Health::ok;
  std::string text;  ///< what there is
  std::string fix;   ///< what to do about it; empty where nothing is to be done
};

/// `folder`: where runs will put their files; it need not exist yet.
std::vector<Finding> examine_machine(const std::filesystem::path& folder);

/// Of what `srun --mpi=list` prints, and whether this program can use it.
Finding judge_process_managers(const std::string& listed);

}  // namespace fp8train
