#include "base/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr uint64_t kPart = 1U << 18;  // bytes that are read and hashed at a time

}  // namespace

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

void HashedReads::fetch(const InputFile& file, uint64_t part) {
  if (part == fetched_) {
    return;
  }
  const uint64_t begin = part * kPart;
  fetched_ = std::numeric_limits<uint64_t>::max();  // while a read can fail
  bytes_.resize(std::min(file.size() - begin, kPart));
  file.read(begin, bytes_.data(), bytes_.size());
  fetched_ = part;
  const uint64_t hash = content_hash(bytes_.data(), bytes_.size());
  if (part == hashes_.size()) {
    hasher_.update(bytes_.data(), bytes_.size());
    hashes_.push_back(hash);
  } else if (hashes_[part] != hash) {
    throw DataError(fmt::format("{}: bytes from {} on have changed while the file was read",
                                file.path().string(), begin));
  }
}

void HashedReads::read(const InputFile& file, uint64_t offset, void* to, size_t bytes) {
  if (offset > file.size() || bytes > file.size() - offset) {
    file.read(offset, to, bytes);  // which throws
  }
  auto* next = static_cast<char*>(to);
  while (bytes > 0) {
    const uint64_t wanted = offset / kPart;
    for (uint64_t part = std::min<uint64_t>(wanted, hashes_.size()); part <= wanted; ++part) {
      fetch(file, part);
    }
    const uint64_t begin = offset - wanted * kPart;
    const size_t some = std::min<uint64_t>(bytes, bytes_.size() - begin);
    std::memcpy(next, bytes_.data() + begin, some);
    next += some;
    offset += some;
    bytes -= some;
  }
}

std::string HashedReads::digest(const InputFile& file) {
  while (hashes_.size() * kPart < file.size()) {
    fetch(file, hashes_.size());
  }
  return hasher_.digest();
}

}  // namespace fp8train
