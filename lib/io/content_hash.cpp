#include "io/content_hash.h"

#include <xxhash.h>

namespace fp8train {

uint64_t content_hash(const void* data, size_t bytes, uint64_t before) {
  return XXH3_64bits_withSeed(data, bytes, before);
}

}  // namespace fp8train
