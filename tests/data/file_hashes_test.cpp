#include "data/file_hashes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

DataFile opened(const std::filesystem::path& path) {
  return {path.string(), InputFile(path).opened()};
}

std::string hash_of_file(const std::filesystem::path& path) {
  const test::TempDir dir;
  return FileHashes({opened(path)}, dir / "cache").known().front();
}

/// Throws what reading threw.
void wait(const FileHashes& hashes) {
  while (hashes.bytes_left() > 0) {
    hashes.known();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

nlohmann::json cache_of(const std::filesystem::path& path) {
  return nlohmann::json::parse(test::read_file(path));
}

/// The cache as it would be had the files been read a minute later, with `hash` for the first one.
void settle(const std::filesystem::path& path, const std::string& hash) {
  nlohmann::json cache = cache_of(path);
  for (auto& file : cache["files"]) {
    file["read_at_ns"] = file["read_at_ns"].get<int64_t>() + 60'000'000'000;
  }
  cache["files"][0]["xxh3_128"] = hash;
  test::write_file(path, cache.dump());
}

/// Overwrites one byte in place and sets the modification time back.
void overwrite_silently(const std::filesystem::path& path, long at, char byte) {
  struct stat before = {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  REQUIRE(file != nullptr);
  std::fseek(file, at, SEEK_SET);
  std::fputc(byte, file);
  std::fclose(file);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

TEST_CASE("the hash is XXH3-128 of all bytes") {
  const test::TempDir dir;
  test::write_file(dir / "empty", "");
  CHECK(hash_of_file(dir / "empty") == "99aa06d3014798d86001c324468d497f");  // xxhash's own value
  test::write_file(dir / "long", std::string(9'000'000, 'x'));
  const std::string before = hash_of_file(dir / "long");
  overwrite_silently(dir / "long", 8'999'999, 'y');
  CHECK(hash_of_file(dir / "long") != before);
}

TEST_CASE("a file is read once, and again when its size, times or inode change") {
  const test::TempDir dir;
  const std::filesystem::path data = dir / "data";
  const std::filesystem::path cache = dir / "hashes.json";
  test::write_file(data, "0123456789");
  const std::string true_hash = hash_of_file(data);
  const auto known = [&] { return FileHashes({opened(data)}, cache).known().front(); };
  CHECK(known() == true_hash);
  CHECK(cache_of(cache)["files"][0]["xxh3_128"] == true_hash);

  const std::string planted(32, 'a');  // seen only where the file is not read
  settle(cache, planted);
  CHECK(known() == planted);

  SECTION("written to, the modification time set back") {
    overwrite_silently(data, 5, 'x');
    CHECK(known() == hash_of_file(data));
    CHECK(known() != true_hash);
  }
  SECTION("another size") {
    test::write_file(data, "01234567890");
    CHECK(known() == hash_of_file(data));
  }
  SECTION("replaced by a file of the same content") {
    test::write_file(dir / "other", "0123456789");
    std::filesystem::rename(dir / "other", data);
    CHECK(known() == true_hash);
  }
  SECTION("only touched") {
    std::filesystem::last_write_time(data, std::filesystem::file_time_type::clock::now());
    CHECK(known() == true_hash);
  }
  SECTION("the cache is damaged") {
    test::write_file(cache, "{\"format\": 3, ");
    CHECK(known() == true_hash);
  }
}

TEST_CASE("a hash made right after the last write is not believed later") {
  const test::TempDir dir;
  test::write_file(dir / "data", "0123456789");
  const auto known = [&] {
    return FileHashes({opened(dir / "data")}, dir / "hashes.json").known().front();
  };
  const std::string true_hash = known();
  nlohmann::json cache = cache_of(dir / "hashes.json");
  cache["files"][0]["xxh3_128"] = std::string(32, 'a');
  test::write_file(dir / "hashes.json", cache.dump());
  CHECK(known() == true_hash);
}

TEST_CASE("what is beyond the bound is hashed by a thread") {
  const test::TempDir dir;
  std::vector<DataFile> files;
  std::vector<std::string> expected;
  for (const char* name : {"a", "b", "c"}) {
    test::write_file(dir / name, std::string(1000, name[0]));
    files.push_back(opened(dir / name));
    expected.push_back(hash_of_file(dir / name));
  }
  {
    const FileHashes hashes(files, dir / "hashes.json", 1000);
    CHECK(hashes.known()[0] == expected[0]);
    wait(hashes);
    CHECK(hashes.known() == expected);
    CHECK(hashes.bytes_left() == 0);
    CHECK(hashes.version() == 2);
  }  // the cache is written after the last hash is known
  CHECK(cache_of(dir / "hashes.json")["files"].size() == 3);
}

TEST_CASE("a file that is gone is an error that names it") {
  const test::TempDir dir;
  test::write_file(dir / "data", "0123456789");
  const std::vector<DataFile> files = {opened(dir / "data")};
  std::filesystem::remove(dir / "data");
  CHECK_THAT(message_of<DataError>([&] { FileHashes(files, dir / "cache"); }), Contains("data"));
  const FileHashes later(files, dir / "cache", 0);
  CHECK_THAT(message_of<DataError>([&] { wait(later); }), Contains("data"));
}

TEST_CASE("a file that changes between opening and hashing is an error") {
  const test::TempDir dir;
  test::write_file(dir / "data", "0123456789");
  const std::vector<DataFile> files = {opened(dir / "data")};
  test::write_file(dir / "data", "01234567890");
  CHECK_THAT(message_of<DataError>([&] { FileHashes(files, dir / "cache"); }),
             Contains("changed while the run was starting"));
  const FileHashes later(files, dir / "cache", 0);
  CHECK_THAT(message_of<DataError>([&] { wait(later); }),
             Contains("data: was written to or replaced since the run began"));
}

}  // namespace
}  // namespace fp8train
