#include "base/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace fp8train {

uint64_t content_hash(const void* data, size_t bytes, uint64_t before) {
  return XXH3_64bits_withSeed(data, bytes, before);
}

struct ContentHasher::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> xxh3 = {XXH3_createState(),
                                                                   XXH3_freeState};
};

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) {
  check(state_->xxh3 != nullptr, "no memory for a hash state");
  XXH3_128bits_reset(state_->xxh3.get());
}

ContentHasher::~ContentHasher() = default;

void ContentHasher::update(const void* data, size_t bytes) {
  if (bytes > 0) {
    XXH3_128bits_update(state_->xxh3.get(), data, bytes);
  }
}

std::string ContentHasher::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh3.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace fp8train
