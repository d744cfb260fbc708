#include "comm/nccl_ranks.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "device/cuda/cuda_device.h"
#include "support/rank_threads.h"

#if defined(FP8TRAIN_CUDA_SHIM)
#include "cuda_runtime_api.h"
#endif

namespace fp8train::test {

int gpus_for_ranks(int wanted) {
#if defined(FP8TRAIN_CUDA_SHIM)
  shim::set_device_count(wanted);
#endif
  const std::string obstacle = why_cuda_is_unusable();
  if (!obstacle.empty()) {
    WARN("not run: " << obstacle);
    return 0;
  }
  return std::min(wanted, visible_gpus());
}

std::vector<std::string> run_nccl_ranks(const Topology& topology, const NcclBody& body,
                                        double timeout) {
  return run_ranks(
      topology,
      [&](Communicator& host) {
        const std::unique_ptr<Device> device = make_device(DeviceKind::cuda, host.rank());
        const std::unique_ptr<Communicator> comm = make_nccl_communicator(host, *device);
        body(*comm, *device, host);
      },
      timeout);
}

}  // namespace fp8train::test
