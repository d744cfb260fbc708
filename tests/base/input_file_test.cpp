#include "base/input_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/error.h"
#include "support/temp_dir.h"

namespace fp8train {

TEST_CASE("a text file larger than the limit is refused", "[base]") {
  const test::TempDir folder;
  write_file_atomically(folder / "a.txt", "12345");
  CHECK(read_text_file(folder / "a.txt", 5) == "12345");
  CHECK_THROWS_AS(read_text_file(folder / "a.txt", 4), DataError);
  write_file_atomically(folder / "empty.txt", "");
  CHECK(read_text_file(folder / "empty.txt", 0).empty());
}

TEST_CASE("a missing file, a folder and a FIFO are refused with their path and kind", "[base]") {
  const test::TempDir folder;
  CHECK_THROWS_WITH(read_text_file(folder / "absent.txt", 10), Catch::Contains("absent.txt"));
  CHECK_THROWS_AS(read_text_file(folder / "absent.txt", 10), DataError);
  CHECK_THROWS_WITH(read_text_file(folder.path(), 10), Catch::Contains("it is a directory"));
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(read_text_file(folder / "pipe", 10), Catch::Contains("it is a FIFO"));
}

}  // namespace fp8train
