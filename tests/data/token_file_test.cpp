#include "data/token_file.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "support/token_shard.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::string header(int32_t magic, int32_t version, int32_t count) {
  std::string bytes(kLlmcHeaderBytes, '\0');
  const int32_t words[3] = {magic, version, count};
  std::memcpy(bytes.data(), words, sizeof(words));
  return bytes;
}

std::shared_ptr<const TokenStore> open_llmc(const std::filesystem::path& path,
                                            int64_t vocab_size = 65536) {
  return llmc_format().open(path, vocab_size, false);
}

std::string opening(const std::filesystem::path& path, const DataFormat& format = llmc_format()) {
  return message_of<DataError>([&] { format.open(path, 65536, false); });
}

std::vector<int32_t> all_of(const TokenStore& store) {
  std::vector<int32_t> tokens(static_cast<size_t>(store.size()));
  store.read(0, store.size(), tokens.data());
  return tokens;
}

TEST_CASE("llm.c shards round-trip in both widths") {
  const test::TempDir dir;
  for (const int64_t vocab : {50257LL, 128256LL}) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 70000; ++i) {
      tokens.push_back(static_cast<int32_t>(i * 7919LL % vocab));
    }
    test::write_shard(dir / "x.bin", tokens, vocab);
    const auto store = open_llmc(dir / "x.bin", vocab);
    CHECK(store->facts().type == (vocab > 65536 ? "u32" : "u16"));
    REQUIRE(store->size() == 70000);
    CHECK(all_of(*store) == tokens);
    int32_t middle[3];
    store->read(65535, 3, middle);
    CHECK(std::equal(middle, middle + 3, tokens.begin() + 65535));
    int32_t magic = 0;
    std::memcpy(&magic, test::read_file(dir / "x.bin").data(), sizeof(magic));
    CHECK(magic == (vocab > 65536 ? 20240801 : 20240520));
  }
}

TEST_CASE("raw u16 has no header") {
  const test::TempDir dir;
  test::write_file(dir / "raw.bin", std::string_view("\x01\x00\xFF\xFF", 4));
  CHECK(all_of(*raw_u16_format().open(dir / "raw.bin", 65536, false)) ==
        std::vector<int32_t>{1, 65535});
  test::write_file(dir / "odd.bin", "abc");
  CHECK_THAT(opening(dir / "odd.bin", raw_u16_format()), Contains("3 bytes"));
}

TEST_CASE("damaged shards are refused with the numbers") {
  const test::TempDir dir;
  const auto path = dir / "bad.bin";
  const auto refusal = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    const std::string message = opening(path);
    CHECK_THAT(message, Contains(path.string()));
    return message;
  };
  const std::string good = header(kLlmcMagicU16, 1, 3) + std::string("\1\0\2\0\3\0", 6);
  test::write_file(path, good);
  CHECK(open_llmc(path)->size() == 3);
  CHECK_THAT(refusal(good.substr(0, good.size() - 1)), Contains("1030") && Contains("1029"));
  CHECK_THAT(refusal(good + "x"), Contains("1031"));
  CHECK_THAT(refusal(""), Contains("0 bytes"));
  CHECK_THAT(refusal(good.substr(0, 1023)), Contains("1023"));
  CHECK_THAT(refusal(header(20240522, 1, 0)), Contains("magic 20240522"));
  CHECK_THAT(refusal(header(kLlmcMagicU16, 7, 0)), Contains("version 7"));
  CHECK_THAT(refusal(header(kLlmcMagicU32, 7, 3) + std::string(6, '\0')), Contains("1036"));
  CHECK_THAT(refusal(header(kLlmcMagicU16, 1, -1)), Contains("-1 tokens"));
  CHECK_THAT(refusal(header(kLlmcMagicU32, 7, 0x7FFFFFFF)), Contains("2147483647 tokens"));
}

TEST_CASE("an id outside the vocabulary names file and offset") {
  const test::TempDir dir;
  test::write_shard(dir / "x.bin", std::vector<int32_t>{1, 2, 511, 512}, 1000);
  const auto store = open_llmc(dir / "x.bin", 512);
  int32_t tokens[4];
  CHECK_NOTHROW(store->read(0, 3, tokens));
  const std::string message = message_of<DataError>([&] { store->read(1, 3, tokens); });
  CHECK_THAT(message, Contains("x.bin") && Contains("token 512 at offset 3 (byte 1030)"));
  CHECK_THROWS_AS(test::write_shard(dir / "y.bin", std::vector<int32_t>{5}, 5), DataError);
  CHECK_THROWS_AS(test::write_shard(dir / "y.bin", std::vector<int32_t>{-1}, 5), DataError);
  CHECK_FALSE(std::filesystem::exists(dir / "y.bin"));
  // u32 ids beyond int32 must not wrap around to a valid one.
  test::write_file(dir / "z.bin", header(kLlmcMagicU32, 7, 1) + std::string("\x01\x00\x00\x80", 4));
  const auto wide = open_llmc(dir / "z.bin", 128256);
  CHECK_THAT(message_of<DataError>([&] { wide->read(0, 1, tokens); }),
             Contains("token 2147483649"));
}

TEST_CASE("only regular files are opened, and a file cut after opening is an error, not a crash") {
  const test::TempDir dir;
  const auto path = dir / "x.bin";
  test::write_shard(path, std::vector<int32_t>(5000, 1), 10);
  std::filesystem::create_symlink(path, dir / "link.bin");
  CHECK(open_llmc(dir / "link.bin")->size() == 5000);
  REQUIRE(::mkfifo((dir / "fifo.bin").c_str(), 0600) == 0);
  CHECK_THAT(opening(dir / "fifo.bin"), Contains("FIFO"));
  CHECK_THAT(opening(dir.path()), Contains("directory"));
  CHECK_THAT(opening(dir / "none.bin"), Contains("No such file"));
  CHECK_THAT(opening("/dev/zero"), Contains("device"));

  const auto store = open_llmc(path, 10);
  std::filesystem::resize_file(path, 2000);
  std::vector<int32_t> tokens(5000);
  CHECK_NOTHROW(store->read(0, 400, tokens.data()));
  CHECK_THAT(message_of<DataError>([&] { store->read(0, 5000, tokens.data()); }),
             Contains("ends at byte 2000") && Contains("11024 bytes"));
  CHECK_THROWS_AS(store->read(4999, 2, tokens.data()), DataError);
  CHECK_THROWS_AS(store->read(-1, 2, tokens.data()), DataError);
}

}  // namespace
}  // namespace fp8train
