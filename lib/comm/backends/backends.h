#pragma once
// Makes the communicators of each backend: one rank, MPI, NCCL and dry runs.

#include <memory>
#include <string>
#include <vector>

#include "comm/comm_settings.h"
#include "comm/communicator.h"

namespace fp8train {

class Device;
struct Launch;
struct Rendezvous;

/// Whether ranks meet by a file (comm/backends/rendezvous.h) instead of MPI; make_communicator then
/// gives each one of its own.
bool meets_by_file(const CommSettings& settings, const Launch& launch);

/// Makes the communicator of all ranks of the run, or of this rank alone if ranks meet by a file.
/// MPI is initialized by the first that needs it. Throws ConfigError where a launcher has started
/// several processes that do not find each other (comm/launch.h); CommError where MPI is not in
/// this build or does not start.
std::unique_ptr<Communicator> make_communicator(const CommSettings& settings);

/// Makes the communicator of a run that has one rank.
std::unique_ptr<Communicator> make_self_communicator();

/// Makes one rank of a run that does not take place. It counts the bytes that would be sent. On the
/// host the parts of others in an all_gather or all_to_all and messages from them become zeros; a
/// broadcast, and memory of meta, stays as it is. Memory of a GPU is refused with CommError.
std::unique_ptr<Communicator> make_dry_run(const Topology& topology, int rank);

/// Makes the communicator of all processes that MPI has started. Throws CommError if MPI fails, and
/// TimeoutError if it does not start or the others do not come within `start_seconds`.
std::unique_ptr<Communicator> make_mpi_communicator(double start_seconds = 600);

/// Makes a communicator for memory of `device`, a GPU, that sends through host memory with `host`.
/// Starting an operation waits for the GPU, and waiting for one copies the received bytes to it. A
/// Work ends before the communicator does; `device` and `host` outlive it.
std::unique_ptr<Communicator> make_staged_communicator(Communicator& host, Device& device);

/// Makes the communicator of NCCL for the ranks of `host`, whose GPUs are `device` of each.
/// Messages in host memory go over `host`. `device` and `host` outlive it. Throws ConfigError where
/// two ranks are on one GPU, CommError where NCCL is not in this build, is not found or does not
/// start.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device);
/// Makes the communicator of NCCL for ranks that find each other by `rendezvous`. Messages in host
/// memory go through memory of the GPU. `device` outlives it. Throws CommError; DeviceError if the
/// first rank cannot write the file.
std::unique_ptr<Communicator> make_nccl_communicator(const Rendezvous& rendezvous, Device& device);

/// The ranks of `inner`, which compare what they call: a collective, its count or its root that is
/// not that of the others ends in a CommError that names the rank, on all ranks. Elements have no
/// type here, only bytes. Slower by a small message for each collective; what it sends for that
/// does not count as traffic. make_communicator() does so in builds without NDEBUG.
std::unique_ptr<Communicator> make_checked_communicator(std::unique_ptr<Communicator> inner);

/// Whether this build has MPI.
bool has_mpi();

}  // namespace fp8train
