#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/json_error.h"
#include "io/safetensors/safetensors.h"

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

/// Follows the parser's events through the only shape a header can have: {name: {dtype, shape:
/// [..], data_offsets: [b, e]}, ...}. A tree of the document is never built, and duplicate keys,
/// which a tree would hide, are seen.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& where)
      : header_(header), where_(where) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool /*value*/) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return unexpected(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return unexpected("the number " + text);
  }
  bool binary(binary_t& /*value*/) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        fail(fmt::format("the extent {} is too large", value));
      }
      if (entry_.shape.size() == kMaxRank) {
        fail(fmt::format("more than {} dimensions", kMaxRank));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::offsets && offsets_ < 2) {
      (offsets_ == 0 ? entry_.begin : entry_.end) = value;
      ++offsets_;
      return true;
    }
    return unexpected(fmt::format("the number {}", value));
  }

  bool string(string_t& value) override {
    if (state_ == State::metadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (state_ == State::entry && key_ == "dtype") {
      const std::optional<SafetensorsType> type = safetensors_type(value);
      if (!type) {
        fail(fmt::format("unknown dtype '{}'", value));
      }
      entry_.type = *type;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t /*elements*/) override {
    if (state_ == State::outside) {
      state_ = State::root;
    } else if (state_ == State::root && key_ == kMetadata) {
      state_ = State::metadata;
    } else if (state_ == State::root) {
      state_ = State::entry;
      entry_ = {};
      entry_.name = key_;
      offsets_ = 0;
    } else {
      return unexpected("an object");
    }
    fields_.clear();
    return true;
  }

  bool key(string_t& value) override {
    auto& seen = state_ == State::root ? names_ : fields_;
    if (!seen.insert(value).second) {
      fail(fmt::format("the key '{}' appears twice", value));
    }
    if (state_ == State::root && value.size() > kMaxNameBytes) {
      fail(fmt::format("a tensor name of {} bytes; at most {} are accepted", value.size(),
                       kMaxNameBytes));
    }
    if (state_ == State::entry && value != "dtype" && value != "shape" && value != "data_offsets") {
      fail(fmt::format("unknown field '{}'", value));
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (state_ == State::entry) {
      finish_entry();
      state_ = State::root;
    } else {
      state_ = state_ == State::metadata ? State::root : State::outside;
    }
    return true;
  }

  bool start_array(std::size_t /*elements*/) override {
    if (state_ == State::entry && key_ == "shape") {
      state_ = State::shape;
    } else if (state_ == State::entry && key_ == "data_offsets") {
      state_ = State::offsets;
    } else {
      return unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets && offsets_ != 2) {
      fail("data_offsets needs two numbers");
    }
    state_ = State::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    throw CheckpointError(
        fmt::format("{}: header byte {}: not JSON: {}", where_, position, plain_json_error(error)));
  }

 private:
  enum class State { outside, root, metadata, entry, shape, offsets };

  [[noreturn]] void fail(const std::string& what) const {
    const bool in_entry =
        state_ == State::entry || state_ == State::shape || state_ == State::offsets;
    throw CheckpointError(fmt::format(
        "{}: {}{}", where_, in_entry ? "tensor '" + entry_.name + "': " : "header: ", what));
  }

  bool unexpected(const std::string& what) const {
    fail(fmt::format("{} where it does not belong (after key '{}')", what, key_));
  }

  void finish_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) {
        fail(fmt::format("the field '{}' is missing", field));
      }
    }
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
    if (header_.entries.size() == kMaxTensors) {
      fail(fmt::format("more than {} tensors", kMaxTensors));
    }
    header_.entries.push_back(std::move(entry_));
  }

  SafetensorsHeader& header_;
  const std::string& where_;
  State state_ = State::outside;
  std::string key_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
  SafetensorsEntry entry_;
  int offsets_ = 0;
};

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
  // The parser takes a NUL for the end of its input, and would ignore what follows.
  if (json.find('\0') != std::string_view::npos) {
    throw CheckpointError(where + ": the header holds a NUL byte");
  }
  SafetensorsHeader header;
  HeaderReader reader(header, where);
  nlohmann::json::sax_parse(json, &reader);
  check_coverage(header, data_bytes, where);
  return header;
}

}  // namespace fp8train
