#pragma once
// GPUs by name, for planning runs on other machines.

#include <string_view>
#include <vector>

namespace fp8train {

/// The facts that the maker of a GPU states: rates are per second, for dense products, in one
/// direction of a link.
struct GpuKind {
  const char* name;
  int capability;           ///< capability, as cuda_traits() takes it
  double memory_gib;        ///< memory that a process can have, rounded down
  double tera_flops_16bit;  ///< 10^12; fp32 sums
  double tera_flops_8bit;
  double memory_rate;     ///< 10^9 bytes
  double node_rate;       ///< 10^9 bytes to other GPUs of the node
  double network_rate;    ///< 10^9 bytes to other nodes, for each GPU, with the usual adapter
  double host_rate;       ///< 10^9 bytes to memory of the host, each way
  double tera_flops_f32;  ///< 10^12 FLOPs of fused multiply-adds, outside of tensor cores

  /// Returns the instructions of whole warps per second: each takes a cycle of one of a
  /// multiprocessor's four schedulers, and a fused multiply-add of 32 lanes is 64 FLOPs.
  double warp_instruction_rate() const { return tera_flops_f32 * 1e12 / 64; }
};

/// The shares of stated rates that a step is assumed to reach; gpu_kinds.cpp has their sources.
struct AchievedShares {
  double bits16, fp8_fast, fp8, f32;                     ///< of GEMMs
  double attention_forward, attention_backward;          ///< shares of the 16-bit rate
  double attention_forward_fp8, attention_backward_fp8;  ///< and of the 8-bit rate
  double memory;
  double instructions;
  double wire;            ///< of links and networks, and of the link to the host
  double launch_seconds;  ///< time of each kernel in addition to its work
};

/// Returns the shares that a step is assumed to reach on `gpu`.
AchievedShares achieved_shares(const GpuKind& gpu);

/// Returns the GPUs that runs can be planned for, ordered by compute capability and memory. Those
/// below 8.9 have no FP8 units: their 8-bit rate is that of 16 bits.
const std::vector<GpuKind>& gpu_kinds();

/// Returns null if no kind has this name.
const GpuKind* find_gpu_kind(std::string_view name);

/// Returns the kind whose name is in a device's description, as up to three words: "NVIDIA H100
/// 80GB HBM3", "NVIDIA GeForce RTX 4090", "NVIDIA RTX PRO 6000 Blackwell". Null when there is none.
const GpuKind* gpu_kind_in(std::string_view description);

}  // namespace fp8train
