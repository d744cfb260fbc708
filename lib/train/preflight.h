#pragma once
// What a run is, in a few lines: at its start and from `check`. Memory by category comes from
// running one step on the meta device.

#include <string>
#include <vector>

#include "device/memory_ledger.h"
#include "train/session.h"

namespace fp8train {

/// Model, row, data, device and the memory plan, one line each.
std::vector<std::string> run_overview(const Session& session, const Device& device,
                                      const std::string& device_reason, int64_t threads,
                                      const MemoryLedger& planned);

/// Logs what a session has to tell: which keys were read as which (info), and what was read and
/// has no meaning here (warnings).
void log_notes(const Session& session);

/// Ranks to plan for: `world_size` on nodes of `ranks_per_node`, as a command line says, or (0) as
/// the configuration's section on jobs does, which becomes that. Throws ConfigError for more ranks
/// than a run can have.
int fill_job(int64_t world_size, int64_t ranks_per_node, JobSettings& job);

/// How the work is laid over ranks: "DDP", "ZeRO 3".
std::string describe_layout(const Session& session);

/// Whether the run fits into the memory of this device, as far as that is known. On the cpu
/// `sharing` ranks have it together.
bool fits(const Device& device, const MemoryLedger& planned, int sharing);

/// "  weights  26.0 MiB" per category that holds anything, and the total.
std::vector<std::string> describe_memory(const MemoryLedger& planned);

}  // namespace fp8train
