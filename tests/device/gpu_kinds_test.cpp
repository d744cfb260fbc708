#include "device/gpu_kinds.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>

namespace fp8train {
namespace {

std::string kind_in(const std::string& description) {
  const GpuKind* kind = gpu_kind_in(description);
  return kind == nullptr ? "" : kind->name;
}

TEST_CASE("a GPU's kind is found in its driver's name for it") {
  CHECK(kind_in("NVIDIA H100 80GB HBM3, sm_90") == "h100");
  CHECK(kind_in("NVIDIA H200") == "h200");
  CHECK(kind_in("NVIDIA GeForce RTX 5090") == "rtx5090");
  CHECK(kind_in("NVIDIA L4") == "l4");
  CHECK(kind_in("NVIDIA A100-SXM4-80GB, sm_80") == "a100");
  CHECK(kind_in("NVIDIA A100 80GB PCIe") == "a100");
  CHECK(kind_in("NVIDIA GH200 480GB") == "gh200");
  CHECK(kind_in("NVIDIA GB200") == "gb200");
  CHECK(kind_in("NVIDIA B300 SXM6 AC") == "b300");
  CHECK(kind_in("NVIDIA RTX 6000 Ada Generation") == "rtx6000ada");
  CHECK(kind_in("NVIDIA RTX PRO 6000 Blackwell Workstation Edition") == "rtxpro6000");
  CHECK(kind_in("NVIDIA RTX PRO 5000 Blackwell").empty());
  CHECK(kind_in("NVIDIA L40").empty());
  CHECK(kind_in("cpu: AMD EPYC, 64 hardware threads").empty());
  CHECK(kind_in("").empty());
}

TEST_CASE("GPUs are ordered by compute capability and memory, and no rate is missing") {
  const GpuKind* before = nullptr;
  for (const GpuKind& kind : gpu_kinds()) {
    CAPTURE(kind.name);
    if (before != nullptr) {
      CHECK(std::pair(before->capability, before->memory_gib) <
            std::pair(kind.capability, kind.memory_gib));
    }
    for (const double rate : {kind.tera_flops_16bit, kind.memory_rate, kind.node_rate,
                              kind.network_rate, kind.tera_flops_f32}) {
      CHECK(rate > 0);
    }
    const double ratio = kind.tera_flops_8bit / kind.tera_flops_16bit;
    CHECK(ratio == Approx(kind.capability >= 89 ? 2.0 : 1.0).epsilon(0.03));
    before = &kind;
  }
}

}  // namespace
}  // namespace fp8train
