#pragma once
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). A draw is a pure function of (key, counter), so that it is the same on any
// device, thread count or sharding.

#include <cstdint>

#include "base/host_device.h"

namespace fp8train {

struct PhiloxBlock {
  uint32_t word[4];
};

/// The 128 random bits at 64-bit position `counter_low` of stream (`key`, `counter_high`).
FP8TRAIN_HD PhiloxBlock philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53U;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57U;
  constexpr uint32_t kWeyl0 = 0x9E3779B9U;
  constexpr uint32_t kWeyl1 = 0xBB67AE85U;
  constexpr int kRounds = 10;
  uint32_t c0 = static_cast<uint32_t>(counter_low);
  uint32_t c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high);
  uint32_t c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * c0;
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * c2;
    const uint32_t n0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(product1);
    c3 = static_cast<uint32_t>(product0);
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

/// Key of a stream: mixes a seed with a purpose and an index (SplitMix64 finalizer), so that
/// streams do not overlap.
FP8TRAIN_HD uint64_t philox_key(uint64_t seed, uint64_t purpose, uint64_t index = 0) {
  uint64_t z = seed + 0x9E3779B97F4A7C15ULL * (purpose + 1) + 0xD1B54A32D192ED03ULL * (index + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// Uniform in [0, 1) with 24 random bits.
FP8TRAIN_HD float uniform_from_bits(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0F / 16777216.0F);
}

}  // namespace fp8train
