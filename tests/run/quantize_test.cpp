// fp8train quantize: its bits against those of NumPy and ml_dtypes
// (tests/golden/check_quantize.py), and what it refuses.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "program.h"

namespace fp8train::test {
namespace {

using Catch::Contains;

const fs::path kGolden = fs::path(FP8TRAIN_GOLDEN_DIR) / "run" / "quantize";

/// FNV-1a of names, types, shapes and bytes, in order of the names, as check_quantize.py takes it.
std::string fingerprint(const fs::path& path) {
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto header = nlohmann::json::parse(bytes.substr(sizeof(length), length));
  const std::string_view data = std::string_view(bytes).substr(sizeof(length) + length);
  uint64_t result = 0xCBF29CE484222325U;
  const auto add = [&](std::string_view text) {
    for (const char byte : text) {
      result = (result ^ static_cast<uint8_t>(byte)) * 0x100000001B3U;
    }
  };
  for (const auto& [name, entry] : header.items()) {  // sorted by name
    if (name == "__metadata__") {
      continue;
    }
    const auto shape = entry["shape"].get<std::vector<int64_t>>();
    add(fmt::format("{} {} [{}]\n", name, entry["dtype"].get<std::string>(),
                    fmt::join(shape, ", ")));
    const auto begin = entry["data_offsets"][0].get<size_t>();
    add(data.substr(begin, entry["data_offsets"][1].get<size_t>() - begin));
  }
  return fmt::format("{:016x}", result);
}

Words split(const std::string& line) {
  std::istringstream stream(line);
  Words words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

TEST_CASE("quantize writes the bits of another program in every combination") {
  const TempDir folder;
  const std::vector<std::string> lines = lines_of(read_file(kGolden / "expected.txt"));
  CHECK(lines.size() == 132);
  for (const std::string& line : lines) {
    Words words = split(line);
    const std::string expected = words.front();
    words.erase(words.begin());
    words.insert(words.begin(), {"quantize", (kGolden / "input.safetensors").string(), "--out",
                                 "out.safetensors", "--overwrite"});
    INFO(line);
    expect_code(0, folder.path(), words);
    CHECK(fingerprint(folder / "out.safetensors") == expected);
  }
}

Words quantize(const Words& more) {
  Words words = {"quantize", (kGolden / "input.safetensors").string()};
  if (std::find(more.begin(), more.end(), "--out") == more.end()) {
    words.insert(words.end(), {"--out", "out.safetensors"});
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_CASE("quantize reports each tensor, what is copied, and a total") {
  const TempDir folder;
  const Outcome text = expect_code(0, folder.path(), quantize({"--granularity", "row"}));
  CHECK_THAT(text.out, Contains("saturated %") && Contains("SNR dB") && Contains("F32.outliers") &&
                           Contains("total") && Contains("a.vector (one dimension)") &&
                           Contains("3 values are NaN and 6 infinite"));
  const Outcome json =
      expect_code(0, folder.path(), quantize({"--granularity", "row", "--overwrite", "--json"}));
  const auto report = nlohmann::json::parse(json.out);
  CHECK(report["tensors"].size() == 33);
  CHECK(report["copied"].size() == 5);
  CHECK(report["total"]["nan"] == 3);
  CHECK(report["format"] == "e4m3 row current");
  const Outcome fp4 =
      expect_code(0, folder.path(), quantize({"--format", "e2m1", "--overwrite", "--json"}));
  CHECK(nlohmann::json::parse(fp4.out)["format"] == "e2m1 1x16 current e4m3");
  const std::string bytes = read_file(folder / "out.safetensors");
  CHECK_THAT(bytes.substr(0, 20000), Contains(R"(\"rounding\":\"nearest_even\")"));
}

TEST_CASE("quantize reports on a file with a name that is not UTF-8") {
  const TempDir folder;
  const Outcome done = expect_code(0, folder.path(), quantize({"--json", "--out", "odd\xFF"}));
  CHECK(nlohmann::json::parse(done.out)["out"] == "odd\uFFFD");
  CHECK(fs::exists(folder / "odd\xFF"));
}

TEST_CASE("the help of quantize lists what each option takes") {
  const TempDir folder;
  std::string help = expect_code(0, folder.path(), {"quantize", "--help"}).out;
  help = std::regex_replace(help, std::regex("\\s+"), " ");  // lines may break in a list
  for (const char* choices :
       {"e4m3, e5m2, e2m1 or int8", "tensor, row, 1x128, 128x128, 1x32, 32x32, 1x16 or 16x16",
        "fp32 or pow2; e8m0, e8m0_floor or e8m0_even for 1x32 or 32x32; e4m3,",
        "for 1x16 or 16x16 (default: the first)", "nearest or stochastic"}) {
    CHECK_THAT(help, Contains(choices));
  }
}

TEST_CASE("quantize refuses what has no meaning and leaves files as they are") {
  const TempDir folder;
  const fs::path out = folder / "out.safetensors";
  const auto refused = [&](int code, const Words& words, const std::string& why) {
    INFO(why);
    CHECK_THAT(expect_code(code, folder.path(), words).err, Contains(why));
    CHECK_FALSE(fs::exists(out));
  };
  refused(2, quantize({"--format", "e4m4"}), "did you mean e4m3?");
  refused(2, quantize({"--granularity", "1x32", "--scale", "pow2"}),
          "scales for 1x32 are e8m0 or e8m0_floor or e8m0_even");
  refused(2, quantize({"--granularity", "row", "--scale", "e8m0"}),
          "scales for row are fp32 or pow2; e8m0 ones are for 1x32, 32x32\n");
  refused(2, quantize({"--granularity", "1x32", "--format", "int8"}), "int8");
  refused(2, quantize({"--seed", "3"}), "--rounding stochastic");
  refused(2, quantize({"--rounding", "up"}), "--rounding up: expected nearest, stochastic");
  refused(2, quantize({"--include", "nothing.*"}), "none of its 38 tensors");
  refused(4, {"quantize", ".", "--out", "out"}, "is neither a model folder");
  refused(2, {"quantize", ".", "--out", "out", "--dequantize"}, "is a folder");
  refused(4, {"quantize", "absent", "--out", "out.safetensors"}, "absent");
  const std::string whole = read_file(kGolden / "input.safetensors");
  write_file(folder / "cut", whole.substr(0, whole.size() - 1));
  refused(4, {"quantize", "cut", "--out", "out.safetensors"}, "cut");
  std::string unknown = whole;
  unknown.replace(unknown.find("\"F64\""), 5, "\"F65\"");
  write_file(folder / "unknown", unknown);
  refused(4, {"quantize", "unknown", "--out", "out.safetensors"}, "F65");
  write_file(out, "mine");
  CHECK_THAT(expect_code(2, folder.path(), quantize({})).err, Contains("--overwrite"));
  CHECK(read_file(out) == "mine");
}

}  // namespace
}  // namespace fp8train::test
