#pragma once
// Hashes the bytes of a file while they are read, so that the hash is that of the bytes in use.
// Reads may come in any order; those in the order of the file read each byte once. One thread uses
// an object at a time.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/content_hash.h"
#include "base/input_file.h"

namespace fp8train {

/// The reads of one file, which the caller opens and passes to each call.
class HashedReads {
 public:
  /// Reads as InputFile::read(). Throws DataError also where bytes that are read again have changed
  /// since they were hashed.
  void read(const InputFile& file, uint64_t offset, void* to, size_t bytes);

  /// Reads what is left of the file and returns the XXH3-128 of all its bytes as 32 hexadecimal
  /// digits. Throws DataError.
  std::string digest(const InputFile& file);

 private:
  void fetch(const InputFile& file, uint64_t part);

  ContentHasher hasher_;
  std::vector<uint64_t> hashes_;                             // of each part so far
  std::vector<char> bytes_;                                  // of the part that was read last
  uint64_t fetched_ = std::numeric_limits<uint64_t>::max();  // which part that is
};

}  // namespace fp8train
