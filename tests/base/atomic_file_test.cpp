#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/input_file.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

size_t entries(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("an atomic file appears only when committed", "[base]") {
  const test::TempDir folder;
  const auto path = folder / "state.bin";
  AtomicFile file(path);
  file.write("first ");
  const char bytes[3] = {'\0', 'x', '\n'};
  file.write(bytes, sizeof(bytes));
  CHECK_FALSE(std::filesystem::exists(path));
  file.commit();
  CHECK(read_text_file(path, 100) == std::string("first \0x\n", 9));
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("a file takes the place of nothing but a regular file, and follows no link", "[base]") {
  namespace fs = std::filesystem;
  const test::TempDir folder;
  write_file_atomically(folder / "victim", "old");
  fs::create_symlink(folder / "victim", folder / "link");
  fs::create_symlink(folder / "none", folder / "dangling");
  fs::create_directory(folder / "folder");
  for (const char* name : {"link", "dangling"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(AtomicFile(folder / name), Catch::Contains("is a link"));
    CHECK(fs::is_symlink(folder / name));
  }
  CHECK_THROWS_WITH(AtomicFile(folder / "folder"), Catch::Contains("is a folder"));
  // Somebody else may have put a link under the name that is written first.
  fs::create_symlink(folder / "victim", folder / "state.partial");
  write_file_atomically(folder / "state", "new");
  CHECK(read_text_file(folder / "state", 100) == "new");
  CHECK(read_text_file(folder / "victim", 100) == "old");
  CHECK(entries(folder.path()) == 5);
  write_file_atomically(folder / "secret", "", Access::owner);
  CHECK(fs::status(folder / "secret").permissions() ==
        (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("a stream gets the bytes and stays what it is", "[base]") {
  namespace fs = std::filesystem;
  const test::TempDir folder;
  const fs::path null = folder / "null";
  const fs::path full = folder / "full";
  if (mknod(null.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0 ||
      mknod(full.c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0) {
    WARN("skipped: only root can make devices");
  } else {
    write_file_atomically(null, "text");
    CHECK_THROWS_WITH(write_file_atomically(full, "text"), Catch::Contains("No space left"));
    CHECK(fs::is_character_file(null));
    CHECK(fs::is_character_file(full));
    CHECK(entries(folder.path()) == 2);
    CHECK_THROWS_WITH(AtomicFile(null).write_at(8, "text", 4), Catch::Contains("Illegal seek"));
  }
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(write_file_atomically(folder / "pipe", "text"), Catch::Contains("is a pipe"));
  int ends[2] = {};
  REQUIRE(::pipe(ends) == 0);
  const fs::path end = "/dev/fd/" + std::to_string(ends[1]);
  CHECK(is_stream(end));
  write_file_atomically(end, "text");
  char bytes[5] = {};
  CHECK(::read(ends[0], bytes, 4) == 4);
  CHECK(std::string(bytes) == "text");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("an atomic file is written at any path", "[base]") {
  const test::TempDir folder;
  const auto path = folder / "state.bin";
  AtomicFile file(path);
  file.write("head");
  file.write_at(8, "tail", 4);
  file.write_at(5, "ab", 2);
  file.write("+");
  file.commit();
  CHECK(read_text_file(path, 100) == std::string("head+ab\0tail", 12));
}

TEST_CASE("an abandoned atomic file leaves the old content and no remains", "[base]") {
  const test::TempDir folder;
  const auto path = folder / "state.bin";
  write_file_atomically(path, "old");
  {
    AtomicFile file(path);
    file.write("new");
  }
  CHECK(read_text_file(path, 100) == "old");
  CHECK(entries(folder.path()) == 1);
  write_file_atomically(path, "newer");
  CHECK(read_text_file(path, 100) == "newer");
}

TEST_CASE("failures name the file", "[base]") {
  const test::TempDir folder;
  CHECK_THROWS_AS(AtomicFile(folder / "absent/state.bin"), DeviceError);
  CHECK_THROWS_WITH(AtomicFile(folder / "absent/state.bin"), Catch::Contains("absent/state.bin"));
  CHECK_THROWS_AS(sync_directory(folder / "absent"), DeviceError);
}

}  // namespace fp8train
