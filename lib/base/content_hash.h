#pragma once
// Fast hashes of bytes (XXH3), for comparing contents. They do not protect against an adversary.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fp8train {

/// Returns the 64-bit hash of `bytes` bytes of `data`, with `before` as its seed: the hash of
/// earlier data makes a chain of hashes.
uint64_t content_hash(const void* data, size_t bytes, uint64_t before = 0);

/// Makes a hash of 128 bits, of bytes that come in parts.
class ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(const ContentHasher&) = delete;
  ContentHasher& operator=(const ContentHasher&) = delete;

  void update(const void* data, size_t bytes);
  /// Returns the hash of all bytes so far as 32 hexadecimal digits.
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fp8train
