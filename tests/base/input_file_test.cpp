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

TEST_CASE("a link whose file is gone is not absent, and its error names both", "[base]") {
  const test::TempDir folder;
  std::filesystem::create_symlink("blobs/gone", folder / "link");
  std::filesystem::create_symlink("loop", folder / "loop");
  write_file_atomically(folder / "file", "a");
  for (const char* name : {"link", "loop", "file"}) {
    CHECK(has_file(folder / name));
  }
  CHECK_FALSE(has_file(folder / "absent"));
  CHECK_FALSE(has_file(folder / "file/below"));
  CHECK_FALSE(has_file(folder.path()));
  CHECK_THROWS_WITH(read_text_file(folder / "link", 10),
                    Catch::Contains("/link: it is a link to blobs/gone, which does not exist"));
}

}  // namespace fp8train
