#pragma once
// The memory layout of a parameter store if ranks share the work of the optimizer (ZeRO,
// Rajbhandari et al. 2020, 1910.02054): pure data. They share it by elements, equally for any sizes
// of tensors.
//
//   stage 1  moments, and values that layers do not read themselves, are stored in parts
//   stage 2  gradients too: whole ones exist for a unit or two, while backward makes them
//   stage 3  all values too: whole ones, and GEMM operands, exist for a unit or two
//
// The assignment of updates to ranks does not depend on the stage: sums, norms and updates have the
// same bits.
//
// The parameters of a unit (what a model reads together: a block, its embedding, its head) that
// have the same formats and are shared by the same ranks make a segment: flat, each parameter from
// a multiple of the wire's range_alignment() (tensor/stored_pool.h) on, padded to as many shards of
// equal size as ranks share it. Rank r of these updates shard r, and so at most one contiguous part
// of a parameter, which begins at such a multiple. Values, gradients and moments have the same
// layout.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fp8train {

class ParameterStore;
struct StrategySite;

/// How the parameters of a store are cut into segments, and the segments into shards of ranks.
struct StoreLayout {
  struct Segment {
    size_t unit = 0;
    std::vector<size_t> parameters;  ///< ascending
    std::vector<int64_t> begins;     ///< first element of each of them
    int64_t shard = 0;               ///< elements of a shard: a multiple of range_alignment()
    bool of_experts = false;         ///< Parameter::of_experts() of its parameters
    /// Whether gathered values (GatheredForm in nn/parameter.h) have memory of their own. If not,
    /// units share slots.
    bool values_stay = true;
    bool gradients_stay = true;  ///< the same of whole gradients

    bool operator==(const Segment&) const = default;
  };
  /// The part of a parameter that this rank updates: elements first .. first + count - 1; count may
  /// be 0.
  struct Part {
    size_t segment = 0;
    int64_t first = 0, count = 0;

    bool operator==(const Part&) const = default;
  };

  /// Ranks that share a segment, and which of them this one is.
  struct Ranks {
    int count = 1, rank = 0;
  };
  Ranks shared, of_experts;  ///< those of segments without and with Segment::of_experts
  /// False: another rank has the same shards, as where nodes are replicas, and writes their states.
  bool writes = true;
  std::vector<Segment> segments;
  std::vector<Part> parts;  ///< the part of each parameter
  /// The group of each unit. Units with the same group share slots, one after another.
  std::vector<size_t> slot_groups;
  bool operands_share_slots = false;  ///< the GEMM operands made of values, too
  bool adds_shards = false;  ///< shards of gradients are sums of several exchanges, in fp32

  const Ranks& ranks_of(const Segment& segment) const {
    return segment.of_experts ? of_experts : shared;
  }
  /// Returns the elements of a whole segment, and the first one of this rank's shard.
  int64_t elements(const Segment& segment) const { return segment.shard * ranks_of(segment).count; }
  int64_t shard_begin(const Segment& segment) const {
    return segment.shard * ranks_of(segment).rank;
  }
};

/// Returns the layout of a store that is not allocated yet over the ranks that share it. Units
/// are used in order, first to last and back. A segment has at most StrategySettings::bucket_bytes
/// of gradients; one parameter may be more. If the site accumulates whole gradients, these keep
/// memory of their own. Throws InternalError unless the stage is 1, 2 or 3.
StoreLayout shard_layout(const ParameterStore& parameters, const StrategySite& site);

}  // namespace fp8train
