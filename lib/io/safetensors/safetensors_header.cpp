#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/json_reader.h"
#include "io/safetensors/safetensors.h"
#include "io/strict_json.h"

namespace fp8train {
namespace {

constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";

/// The types that the program does not write; the others are in kDTypes.
constexpr SafetensorsType kUnwrittenTypes[] = {
    {"BOOL", 8, {}},        {"F4", 4, {}},           {"F6_E2M3", 6, {}}, {"F6_E3M2", 6, {}},
    {"F8_E4M3FNUZ", 8, {}}, {"F8_E5M2FNUZ", 8, {}},  {"I16", 16, {}},    {"U32", 32, {}},
    {"C64", 64, {}},        {"F64", 64, DType::f64}, {"U64", 64, {}}};

// Checkpoints hold stored tensors, and `quantize` writes codes of a byte.
static_assert(std::ranges::all_of(kDTypes, [](const DTypeFacts& facts) {
  const bool is_written = facts.has(use::stored) || is_byte_code(facts.type);
  return !is_written || !facts.safetensors.empty();
}));

/// Returns a short text of a value for messages.
std::string shown(const nlohmann::json& value) {
  if (value.is_number()) return "the number " + value.dump();
  return fmt::format("a value of type {}", value.type_name());
}

/// Reads one tensor: {dtype, shape: [..], data_offsets: [begin, end]}.
class EntryReader {
 public:
  EntryReader(const std::string& name, const nlohmann::json& fields, const std::string& where)
      : fields_(fields), where_(where), entry_({.name = name}) {}

  SafetensorsEntry read() {
    if (!fields_.is_object()) fail(shown(fields_) + " is not the description of a tensor");
    for (const auto& [field, value] : fields_.items()) {
      if (field != "dtype" && field != "shape" && field != "data_offsets") {
        fail(fmt::format("unknown field '{}'", field));
      }
    }
    read_type();
    for (const uint64_t extent : numbers("shape", kMaxRank)) {
      if (!std::in_range<int64_t>(extent)) fail(fmt::format("the extent {} is too large", extent));
      entry_.shape.push_back(static_cast<int64_t>(extent));
    }
    const std::vector<uint64_t> offsets = numbers("data_offsets", 2);
    if (offsets.size() != 2) fail("data_offsets needs two numbers");
    entry_.begin = offsets[0];
    entry_.end = offsets[1];
    check_size();
    return std::move(entry_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: tensor '{}': {}", where_, entry_.name, what));
  }

  const nlohmann::json& at(const char* field) const {
    if (!fields_.contains(field)) fail(fmt::format("the field '{}' is missing", field));
    return fields_[field];
  }

  void read_type() {
    const nlohmann::json& name = at("dtype");
    if (!name.is_string()) fail("dtype is " + shown(name));
    const std::optional<SafetensorsType> type = safetensors_type(name.get<std::string_view>());
    if (!type) fail(fmt::format("unknown dtype '{}'", name.get<std::string_view>()));
    entry_.type = *type;
  }

  std::vector<uint64_t> numbers(const char* field, size_t most) const {
    const nlohmann::json& list = at(field);
    if (!list.is_array()) fail(fmt::format("{} is {}", field, shown(list)));
    if (list.size() > most) fail(fmt::format("{} has more than {} numbers", field, most));
    std::vector<uint64_t> result;
    for (const nlohmann::json& value : list) {
      if (!value.is_number_unsigned()) fail(fmt::format("{} has {}", field, shown(value)));
      result.push_back(value.get<uint64_t>());
    }
    return result;
  }

  void check_size() const {
    auto bits = static_cast<uint64_t>(entry_.type.bits);
    for (const int64_t extent : entry_.shape) {
      if (__builtin_mul_overflow(bits, static_cast<uint64_t>(extent), &bits)) {
        fail("the size of its shape overflows");
      }
    }
    if (entry_.begin > entry_.end || bits % 8 != 0 || entry_.bytes() != bits / 8) {
      fail(fmt::format("its shape of {} bits does not fill bytes [{}, {})", bits, entry_.begin,
                       entry_.end));
    }
  }

  const nlohmann::json& fields_;
  const std::string& where_;
  SafetensorsEntry entry_;
};

std::map<std::string, std::string> read_metadata(const nlohmann::json& table,
                                                 const std::string& where) {
  if (!table.is_object()) {
    throw CheckpointError(fmt::format("{}: header: {} is {}", where, kMetadata, shown(table)));
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : table.items()) {
    if (!value.is_string()) {
      throw CheckpointError(
          fmt::format("{}: header: '{}' of {} is {}", where, key, kMetadata, shown(value)));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

void check_coverage(SafetensorsHeader& header, uint64_t data_bytes, const std::string& where) {
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  uint64_t position = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin != position) {
      throw CheckpointError(fmt::format(
          "{}: tensor '{}' begins at data byte {}, but the one before it ends at {} ({})", where,
          entry.name, entry.begin, position, entry.begin < position ? "overlap" : "hole"));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    throw CheckpointError(fmt::format(
        "{}: the tensors end at data byte {}, but the file holds {} bytes of data; it is "
        "cut off or has bytes that belong to no tensor",
        where, position, data_bytes));
  }
}

}  // namespace

int64_t SafetensorsEntry::count() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::optional<SafetensorsType> safetensors_type(std::string_view name) {
  for (const DTypeFacts& facts : kDTypes) {
    if (!name.empty() && facts.safetensors == name) {
      return safetensors_type(facts.type);
    }
  }
  const auto* const found = std::ranges::find(kUnwrittenTypes, name, &SafetensorsType::name);
  return found == std::end(kUnwrittenTypes) ? std::nullopt : std::optional(*found);
}

SafetensorsType safetensors_type(DType dtype) {
  const DTypeFacts& facts = facts_of(dtype);
  check(!facts.safetensors.empty(), "a DType without a safetensors name");
  return {facts.safetensors, facts.bits, dtype};
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& where) {
  if (!json.starts_with('{')) {
    throw CheckpointError(where +
                          ": the header does not begin with '{'; this is not a safetensors file");
  }
  const nlohmann::json document =
      detail::as_checkpoint_error([&] { return parse_json(json, where + ": header"); });
  if (document.size() > kMaxTensors) {
    throw CheckpointError(fmt::format("{}: header: more than {} tensors", where, kMaxTensors));
  }
  SafetensorsHeader header;
  for (const auto& [name, value] : document.items()) {
    if (name.size() > kMaxNameBytes) {
      throw CheckpointError(
          fmt::format("{}: header: a tensor name of {} bytes; at most {} are accepted", where,
                      name.size(), kMaxNameBytes));
    }
    if (name == kMetadata) {
      header.metadata = read_metadata(value, where);
    } else {
      header.entries.push_back(EntryReader(name, value, where).read());
    }
  }
  check_coverage(header, data_bytes, where);
  return header;
}

}  // namespace fp8train
