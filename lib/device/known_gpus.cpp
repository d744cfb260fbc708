#include "device/known_gpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace fp8train {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

/// What the driver and CUDA's context keep for themselves.
constexpr int64_t kReserved = int64_t{1} << 30;

int64_t gigabytes(double count) {
  return static_cast<int64_t>(count * kGiga) - kReserved;
}

}  // namespace

const std::vector<KnownGpu>& known_gpus() {
  // NVIDIA's data sheets: H100 SXM and H200 SXM (NVLink 4: 900 GB/s in both directions), B200 (DGX
  // B200, per GPU; NVLink 5: 1800 GB/s), L40S and GeForce RTX 4090 (PCIe 4.0 x16: 64 GB/s in both
  // directions; the 4090 with fp32 accumulation). Networks: 400 Gbit/s per GPU (ConnectX-7) beside
  // the first three, 100 beside the others.
  static const std::vector<KnownGpu> kGpus = {
      {"h100", "H100 SXM 80 GB", 90, gigabytes(85.0), 989 * kTera, 1979 * kTera, 3350 * kGiga,
       450 * kGiga, 50 * kGiga},
      {"h200", "H200 SXM 141 GB", 90, gigabytes(150.7), 989 * kTera, 1979 * kTera, 4800 * kGiga,
       450 * kGiga, 50 * kGiga},
      {"b200", "B200 180 GB", 100, gigabytes(192.0), 2250 * kTera, 4500 * kTera, 7700 * kGiga,
       900 * kGiga, 50 * kGiga},
      {"l40s", "L40S 48 GB", 89, gigabytes(48.3), 362 * kTera, 733 * kTera, 864 * kGiga, 32 * kGiga,
       12.5 * kGiga},
      {"rtx4090", "GeForce RTX 4090 24 GB", 89, gigabytes(25.4), 165 * kTera, 330 * kTera,
       1008 * kGiga, 32 * kGiga, 12.5 * kGiga},
  };
  return kGpus;
}

const KnownGpu& known_gpu(const std::string& name) {
  const auto found = std::find_if(known_gpus().begin(), known_gpus().end(),
                                  [&](const KnownGpu& gpu) { return gpu.name == name; });
  if (found == known_gpus().end()) {
    std::string names;
    for (const KnownGpu& gpu : known_gpus()) {
      names += (names.empty() ? "" : ", ") + gpu.name;
    }
    throw ConfigError(fmt::format("--gpu: '{}' is not one of {}", name, names));
  }
  return *found;
}

DeviceTraits traits_of(const KnownGpu& gpu) {
  return cuda_traits(gpu.capability);
}

}  // namespace fp8train
