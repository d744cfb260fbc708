#include "base/atomic_file.h"

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

  // Publishing over a folder must fail and leave nothing behind.
  std::filesystem::create_directory(folder / "taken");
  AtomicFile file(folder / "taken");
  file.write("text");
  CHECK_THROWS_AS(file.commit(), DeviceError);
  CHECK_FALSE(std::filesystem::exists(folder / "taken.partial"));
}

}  // namespace fp8train
