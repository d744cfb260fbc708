#include "data/tokenizers/json_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "data/utf8.h"

namespace fp8train::tokenizers {
namespace {

constexpr int kMostDepth = 16;
constexpr int64_t kMostHoles = int64_t{1} << 20;

}  // namespace

JsonPart::JsonPart(const nlohmann::json& value, std::string where)
    : JsonPart(value, std::move(where), 0) {}

JsonPart::JsonPart(const nlohmann::json& value, std::string where, int depth)
    : value_(&value), where_(std::move(where)), depth_(depth) {}

bool JsonPart::has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonPart JsonPart::at(std::string_view key) const {
  if (!has(key)) {
    refuse(fmt::format("'{}' is missing", key));
  }
  return {*value_->find(key), fmt::format("{}.{}", where_, key), depth_};
}

JsonPart JsonPart::at(size_t index) const {
  if (!value_->is_array() || index >= value_->size()) {
    refuse("is not a list of that length");
  }
  if (depth_ >= kMostDepth) {
    refuse(fmt::format("is nested more than {} deep", kMostDepth));
  }
  return {(*value_)[index], fmt::format("{}[{}]", where_, index), depth_ + 1};
}

std::string JsonPart::text(std::string_view key) const {
  const JsonPart found = at(key);
  if (!found.value().is_string()) {
    found.refuse("is not a string");
  }
  return found.value().get<std::string>();
}

std::string JsonPart::text_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

bool JsonPart::flag_or(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const JsonPart found = at(key);
  if (!found.value().is_boolean()) {
    found.refuse("is neither true nor false");
  }
  return found.value().get<bool>();
}

int64_t JsonPart::number(std::string_view key) const {
  const JsonPart found = at(key);
  if (!found.value().is_number_integer()) {
    found.refuse("is not a whole number");
  }
  // As a signed number a larger one would be negative.
  if (found.value().is_number_unsigned() &&
      found.value().get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    found.refuse("is too large");
  }
  return found.value().get<int64_t>();
}

void JsonPart::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, field] : value_->items()) {
    if (!field.is_null() && key != "type" &&
        std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(fmt::format("'{}' is not supported", printable(key)));
    }
  }
}

void JsonPart::refuse(const std::string& what) const {
  throw DataError(fmt::format("{}: {}", where_, what));
}

void require_dense(const JsonPart& part, int64_t id, size_t tokens) {
  const int64_t most = static_cast<int64_t>(tokens) + kMostHoles;
  if (id < 0 || id >= most) {
    part.refuse(fmt::format("id {} is not between 0 and {} ({} tokens and 2^20 ids without one)",
                            id, most - 1, tokens));
  }
}

void refuse_type(const JsonPart& part, std::string_view kind, std::string_view known) {
  part.refuse(fmt::format("{} of type '{}' are not supported (supported: {})", kind,
                          printable(part.type()), known));
}

}  // namespace fp8train::tokenizers
