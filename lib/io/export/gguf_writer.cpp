#include "io/export/export_gguf.h"

#include <fmt/format.h>

#include <array>
#include <functional>
#include <numeric>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/math.h"

namespace fp8train {
namespace {

constexpr uint32_t kVersion = 3;
constexpr uint64_t kAlignment = 32;  // general.alignment is 32 where no key says otherwise

constexpr GgufTypeFacts kTypes[] = {{GgufType::f32, 0, DType::f32, 1, 4},
                                    {GgufType::f16, 1, DType::f16, 1, 2},
                                    {GgufType::q8_0, 7, {}, 32, 34},
                                    {GgufType::bf16, 32, DType::bf16, 1, 2}};

/// Types of values (ggml: gguf_type).
enum class ValueType : uint32_t { u32 = 4, i32 = 5, f32 = 6, boolean = 7, text = 8, list = 9 };

template <typename Number>
void append(std::string& to, Number value) {
  static_assert(std::is_trivially_copyable_v<Number>);
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_text(std::string& to, std::string_view text) {
  append(to, static_cast<uint64_t>(text.size()));
  to += text;
}

void append_type(std::string& to, ValueType type) {
  append(to, static_cast<uint32_t>(type));
}

void append_list(std::string& to, const ConfigValue::List& list) {
  append_type(to, ValueType::list);
  const bool whole = !list.empty() && std::holds_alternative<int64_t>(list.front().data());
  const bool number = !list.empty() && std::holds_alternative<double>(list.front().data());
  append_type(to, whole ? ValueType::i32 : number ? ValueType::f32 : ValueType::text);
  append(to, static_cast<uint64_t>(list.size()));
  for (const ConfigValue& value : list) {
    if (whole) {
      append(to, static_cast<int32_t>(std::get<int64_t>(value.data())));
    } else if (number) {
      append(to, static_cast<float>(std::get<double>(value.data())));
    } else {
      append_text(to, std::get<std::string>(value.data()));
    }
  }
}

void append_value(std::string& to, const ConfigValue& value) {
  if (const auto* flag = std::get_if<bool>(&value.data())) {
    append_type(to, ValueType::boolean);
    append(to, static_cast<uint8_t>(*flag));
  } else if (const auto* whole = std::get_if<int64_t>(&value.data())) {
    check(std::in_range<uint32_t>(*whole), "a number of a GGUF file does not fit into 32 bits");
    append_type(to, ValueType::u32);
    append(to, static_cast<uint32_t>(*whole));
  } else if (const auto* number = std::get_if<double>(&value.data())) {
    append_type(to, ValueType::f32);
    append(to, static_cast<float>(*number));
  } else if (const auto* text = std::get_if<std::string>(&value.data())) {
    append_type(to, ValueType::text);
    append_text(to, *text);
  } else {
    append_list(to, std::get<ConfigValue::List>(value.data()));
  }
}

std::string header_of(const ConfigObject& metadata, const std::vector<GgufTensor>& tensors) {
  std::string header = "GGUF";
  append(header, kVersion);
  append(header, static_cast<uint64_t>(tensors.size()));
  append(header, static_cast<uint64_t>(metadata.size()));
  for (const ConfigEntry& entry : metadata) {
    append_text(header, entry.key);
    append_value(header, entry.value);
  }
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(header, tensor.name);
    append(header, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      append(header, static_cast<uint64_t>(tensor.shape[i]));
    }
    append(header, static_cast<uint32_t>(tensor.type));
    append(header, offset);
    offset += round_up(tensor.bytes(), kAlignment);
  }
  return header;
}

}  // namespace

const GgufTypeFacts& facts_of(GgufType type) {
  for (const GgufTypeFacts& facts : kTypes) {
    if (facts.type == type) return facts;
  }
  throw InternalError("an unknown type of a GGUF file");
}

uint64_t GgufTensor::bytes() const {
  const GgufTypeFacts& facts = facts_of(type);
  check(shape.back() % facts.block == 0, "rows are not multiples of the type's blocks");
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return static_cast<uint64_t>(count / facts.block) * facts.block_bytes;
}

GgufWriter::GgufWriter(const std::filesystem::path& path, const ConfigObject& metadata,
                       std::vector<GgufTensor> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  const std::string header = header_of(metadata, tensors_);
  file_.write(header);
  position_ = header.size();
  pad();
}

void GgufWriter::pad() {
  constexpr std::array<char, kAlignment> kZeros = {};
  const uint64_t missing = round_up(position_, kAlignment) - position_;
  file_.write(kZeros.data(), missing);
  position_ += missing;
}

void GgufWriter::write(const void* data) {
  check(next_ < tensors_.size(), "more tensors than were announced");
  const uint64_t bytes = tensors_[next_++].bytes();
  file_.write(data, bytes);
  position_ += bytes;
  pad();
}

void GgufWriter::commit() {
  check(next_ == tensors_.size(), "a tensor that was announced is missing");
  file_.commit();
}

}  // namespace fp8train
