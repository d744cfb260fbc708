// The file of a GPU's products: what it holds is read, and nothing else is. A device whose table
// can be set stands in for a GPU here.

#include "train/probed_products.h"

#include <catch2/catch.hpp>

#include <string>

#include "base/atomic_file.h"
#include "base/input_file.h"
#include "device/device.h"
#include "support/environment.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

const char* const kKey = "probe 1\ncuda: a GPU\ndriver 580\ncuBLASLt: 13.1.0\n";
constexpr Fp8Product kRows = {ScalePair::row, DType::e4m3, DType::e4m3, DType::bf16, false};

std::filesystem::path only_file(const std::filesystem::path& folder) {
  std::filesystem::path found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    REQUIRE(found.empty());
    found = entry.path();
  }
  return found;
}

/// The support of kRows that a new device finds, whose chip has every product.
Fp8Support found_rows(const std::filesystem::path& folder, const std::string& key = kKey) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  DeviceTraits traits = device->traits();
  traits.fp8_products = Fp8Products(Fp8Support::any);
  device->set_traits(traits);
  find_products(*device, folder, key);
  return device->traits().fp8_products.support(kRows);
}

/// Stores a result in which kRows is missing, and returns its file.
std::filesystem::path store_without_rows(const std::filesystem::path& folder) {
  found_rows(folder);
  const std::filesystem::path file = only_file(folder);
  const Fp8Products any(Fp8Support::any);
  // Its digit is found by storing what a chip without it finds.
  const TempDir other;
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  DeviceTraits traits = device->traits();
  traits.fp8_products = any;
  traits.fp8_products.set(kRows, Fp8Support::none);
  device->set_traits(traits);
  find_products(*device, other.path(), kKey);
  const std::string lacking = read_text_file(only_file(other.path()), 1 << 20);
  const std::string whole = read_text_file(file, 1 << 20);
  write_file_atomically(
      file, whole.substr(0, whole.rfind("found ")) + lacking.substr(lacking.rfind("found ")));
  return file;
}

TEST_CASE("what an earlier probe found is read again, for the same key only") {
  const TempDir folder;
  CHECK(found_rows(folder.path()) == Fp8Support::any);
  store_without_rows(folder.path());
  CHECK(found_rows(folder.path()) == Fp8Support::none);
  for (const char* const key : {"probe 2\ncuda: a GPU\ndriver 580\ncuBLASLt: 13.1.0\n",
                                "probe 1\ncuda: another GPU\ndriver 580\ncuBLASLt: 13.1.0\n",
                                "probe 1\ncuda: a GPU\ndriver 590\ncuBLASLt: 13.1.0\n",
                                "probe 1\ncuda: a GPU\ndriver 580\ncuBLASLt: 13.2.0\n"}) {
    CAPTURE(key);
    CHECK(found_rows(folder.path(), key) == Fp8Support::any);
  }
}

TEST_CASE("FP8TRAIN_GEMM_PROBE=always reads no earlier result") {
  const TempDir folder;
  store_without_rows(folder.path());
  {
    const EnvironmentScope always("FP8TRAIN_GEMM_PROBE", "always");
    CHECK(found_rows(folder.path()) == Fp8Support::any);
  }
  const EnvironmentScope unknown("FP8TRAIN_GEMM_PROBE", "never");
  CHECK_THROWS_WITH(found_rows(folder.path()),
                    Catch::Contains("FP8TRAIN_GEMM_PROBE=never: expected always"));
}

TEST_CASE("a damaged result is not read, and is replaced") {
  const TempDir folder;
  const std::filesystem::path file = store_without_rows(folder.path());
  const std::string good = read_text_file(file, 1 << 20);
  std::string more = good;  // a probe adds no support
  more[more.rfind("found ") + 6] = '9';
  for (const std::string& text :
       {std::string(), good.substr(0, good.size() / 2), good.substr(0, good.size() - 2) + "\n",
        good.substr(0, good.size() - 1), good + "0\n", more, std::string(1 << 17, '0')}) {
    write_file_atomically(file, text);
    CHECK(found_rows(folder.path()) == Fp8Support::any);
    CHECK(read_text_file(file, 1 << 20).size() == good.size());
  }
}

TEST_CASE("a folder that cannot be written costs the result, not the run") {
  const TempDir folder;
  write_file_atomically(folder / "file", "");
  CHECK(found_rows(folder / "file") == Fp8Support::any);
}

}  // namespace
}  // namespace fp8train::test
