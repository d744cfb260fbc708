#include "device/gpu_kinds.h"

#include <catch2/catch.hpp>
#include <string>

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
  CHECK(kind_in("NVIDIA L40").empty());
  CHECK(kind_in("cpu: AMD EPYC, 64 hardware threads").empty());
  CHECK(kind_in("").empty());
}

}  // namespace
}  // namespace fp8train
