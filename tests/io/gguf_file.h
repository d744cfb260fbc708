#pragma once
// Reads a GGUF file for tests, apart from the program's writer: keys with their types, and tensors.

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/files.h"

namespace fp8train::test {

constexpr uint64_t kFnvStart = 14695981039346656037U;

inline uint64_t fnv(std::string_view bytes, uint64_t state = kFnvStart) {
  for (const char byte : bytes) {
    state = (state ^ static_cast<uint8_t>(byte)) * 1099511628211U;
  }
  return state;
}

struct GgufFile {
  struct Tensor {
    std::string type;
    std::vector<uint64_t> shape;  ///< last extent first
    std::string bytes;
  };

  /// [type, value]; of lists [type, count, FNV-1a of the items' bytes].
  std::map<std::string, nlohmann::json> metadata;
  std::map<std::string, Tensor> tensors;

  explicit GgufFile(const std::filesystem::path& path) : data_(read_file(path)) {
    REQUIRE(take(4) == "GGUF");
    REQUIRE(number<uint32_t>() == 3);
    const auto count = number<uint64_t>();
    const auto keys = number<uint64_t>();
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key(text());
      metadata[key] = value(number<uint32_t>());
    }
    std::vector<std::pair<std::string, uint64_t>> offsets;
    for (uint64_t i = 0; i < count; ++i) {
      const std::string name(text());
      Tensor& tensor = tensors[name];
      const auto rank = number<uint32_t>();
      for (uint32_t d = 0; d < rank; ++d) {
        tensor.shape.push_back(number<uint64_t>());
      }
      tensor.type = type_name(number<uint32_t>());
      offsets.emplace_back(name, number<uint64_t>());
    }
    const size_t start = (position_ + 31) / 32 * 32;
    for (const auto& [name, offset] : offsets) {
      CHECK(offset % 32 == 0);
      Tensor& tensor = tensors[name];
      REQUIRE(start + offset + bytes_of(tensor) <= data_.size());
      tensor.bytes = data_.substr(start + offset, bytes_of(tensor));
    }
  }

 private:
  static std::string type_name(uint32_t type) {
    const std::map<uint32_t, std::string> names = {
        {0, "F32"}, {1, "F16"}, {8, "Q8_0"}, {30, "BF16"}};
    return names.at(type);
  }

  static uint64_t bytes_of(const Tensor& tensor) {
    uint64_t count = 1;
    for (const uint64_t extent : tensor.shape) {
      count *= extent;
    }
    return tensor.type == "F32" ? 4 * count : tensor.type == "Q8_0" ? count / 32 * 34 : 2 * count;
  }

  std::string_view take(uint64_t bytes) {
    REQUIRE(position_ + bytes <= data_.size());
    position_ += bytes;
    return std::string_view(data_).substr(position_ - bytes, bytes);
  }
  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string_view text() { return take(number<uint64_t>()); }

  nlohmann::json value(uint32_t type) {
    switch (type) {
      case 4:
        return {"UINT32", number<uint32_t>()};
      case 6:
        return {"FLOAT32", static_cast<double>(number<float>())};
      case 7:
        return {"BOOL", number<uint8_t>() != 0};
      case 8:
        return {"STRING", text()};
      default:
        REQUIRE(type == 9);
        return list();
    }
  }

  nlohmann::json list() {
    const auto type = number<uint32_t>();
    const auto count = number<uint64_t>();
    uint64_t state = kFnvStart;
    for (uint64_t i = 0; i < count; ++i) {
      state = fnv(type == 8 ? text() : take(4), state);
    }
    const std::map<uint32_t, std::string> names = {{5, "INT32"}, {6, "FLOAT32"}, {8, "STRING"}};
    char hash[17] = {};
    std::snprintf(hash, sizeof(hash), "%016llx", static_cast<unsigned long long>(state));
    return {"ARRAY of " + names.at(type), count, hash};
  }

  std::string data_;
  size_t position_ = 0;
};

}  // namespace fp8train::test
