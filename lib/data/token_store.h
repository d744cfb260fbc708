#pragma once
// Token ids that are somewhere: in a file, or in memory.

#include <cstdint>

namespace fp8train {

/// Where a run of tokens of a corpus lies. `read` may be called from several threads.
class TokenStore {
 public:
  TokenStore() = default;
  TokenStore(const TokenStore&) = delete;
  TokenStore& operator=(const TokenStore&) = delete;
  virtual ~TokenStore() = default;

  /// Number of tokens.
  virtual int64_t size() const = 0;
  /// Tokens [offset, offset + count) into `to`.
  virtual void read(int64_t offset, int64_t count, int32_t* to) const = 0;
};

}  // namespace fp8train
