#include "base/content_hash.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

/// Bytes of which no two parts are alike.
std::string random_bytes(size_t count) {
  std::mt19937 random(11);
  std::string bytes(count, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random());
  }
  return bytes;
}

TEST_CASE("reads in any order give the bytes and the hash of the file", "[base]") {
  const test::TempDir folder;
  const auto size = static_cast<size_t>(GENERATE(0, 1, 262143, 262144, 262145, 1'000'003));
  const std::string bytes = random_bytes(size);
  test::write_file(folder / "file", bytes);
  const InputFile file(folder / "file");
  HashedReads reads;
  std::mt19937 random(7);
  for (int i = 0; i < 50 && size > 0; ++i) {
    const size_t offset = random() % size;
    std::string got(random() % (size - offset + 1), '\0');
    reads.read(file, offset, got.data(), got.size());
    REQUIRE(got == bytes.substr(offset, got.size()));
  }
  CHECK(reads.digest(file) == *hash_content(file));
}

TEST_CASE("bytes that change while the file is read are found", "[base]") {
  const test::TempDir folder;
  std::string bytes = random_bytes(1'000'000);
  test::write_file(folder / "file", bytes);
  const std::string before = *hash_content(InputFile(folder / "file"));
  const InputFile file(folder / "file");
  HashedReads reads;
  std::string some(10, '\0');
  reads.read(file, 600'000, some.data(), some.size());
  for (const size_t at : {5, 900'000}) {  // in a part that has been hashed, and in one that has not
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  }
  test::write_file(folder / "file", bytes);
  CHECK_THROWS_WITH(reads.read(file, 0, some.data(), some.size()),
                    Catch::Contains("bytes from 0 on have changed"));
  CHECK(reads.digest(file) != before);
  CHECK_THROWS_AS(reads.read(file, 999'995, some.data(), some.size()), DataError);
}

}  // namespace
}  // namespace fp8train
