// Against what TensorBoard's own code writes (tests/golden/make_event_file.py).

#include "io/event_file.h"

#include <array>
#include <bit>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

std::map<std::string, std::string> expected_records() {
  std::istringstream lines(
      test::read_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "io" / "event_file.txt"));
  std::map<std::string, std::string> records;
  for (std::string name, digits; lines >> name >> digits;) {
    for (size_t i = 0; i < digits.size(); i += 2) {
      records[name] += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
  }
  return records;
}

template <class Bits>
Bits number_at(const std::string& bytes, size_t at) {
  Bits bits;
  REQUIRE(at + sizeof bits <= bytes.size());
  std::memcpy(&bits, bytes.data() + at, sizeof bits);
  return bits;
}

uint32_t masked(const std::string& bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

/// The contents of the records of a file, whose checksums must be right.
std::vector<std::string> contents_of(const std::string& file) {
  std::vector<std::string> contents;
  for (size_t at = 0; at < file.size();) {
    const auto length = number_at<uint64_t>(file, at);
    CHECK(number_at<uint32_t>(file, at + 8) == masked(file.substr(at, 8)));
    contents.push_back(file.substr(at + 12, length));
    CHECK(number_at<uint32_t>(file, at + 12 + length) == masked(contents.back()));
    at += 16 + length;
  }
  return contents;
}

std::string file_in(const std::filesystem::path& folder) {
  std::string text;
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CHECK(entry.path().filename().string().find("tfevents") != std::string::npos);
    text = test::read_file(entry.path());
    ++files;
  }
  CHECK(files == 1);
  return text;
}

TEST_CASE("the checksum is CRC-32C") {
  CHECK(crc32c("123456789") == 0xE3069283U);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);  // RFC 3720, B.4
  for (const auto& [name, record] : expected_records()) {
    CAPTURE(name);
    CHECK(contents_of(record).size() == 1);
  }
}

TEST_CASE("events are those that TensorBoard writes") {
  const test::TempDir dir;
  {
    EventFile file(dir / "tensorboard", 40);
    file.write(7, EventSummary().scalar("loss/train", 2.5).scalar("lr", 1e-3));
    const std::array<double, 5> values = {-1.5, 0.25, 0.5, 2.0,
                                          -std::numeric_limits<double>::infinity()};
    file.write(300, EventSummary().histogram("amax", values, 1.0));
    file.write(1, EventSummary().text("config", "    a: 1"));
    file.write(2, EventSummary().scalar("loss", std::numeric_limits<double>::quiet_NaN()));
  }
  const std::vector<std::string> written = contents_of(file_in(dir / "tensorboard"));
  REQUIRE(written.size() == 5);
  CHECK(written[0].find("brain.Event:2") != std::string::npos);
  const auto expected = expected_records();
  const char* names[] = {"start", "scalars", "histogram", "text"};
  for (size_t i = 0; i < 4; ++i) {
    CAPTURE(names[i]);
    constexpr size_t kWallTime = 9;  // the first field, which differs
    CHECK(written[i + 1].substr(kWallTime) == contents_of(expected.at(names[i])).at(0));
  }
}

TEST_CASE("a folder that cannot be written is an error") {
  const test::TempDir dir;
  test::write_file(dir / "file", "x");
  CHECK_THROWS_AS(EventFile(dir / "file" / "tensorboard", 0), DeviceError);
}

}  // namespace
}  // namespace fp8train
