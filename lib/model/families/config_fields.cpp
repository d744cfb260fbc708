#include "model/families/config_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxNumber = int64_t{1} << 31;

/// Whether the value is a whole number that an int64_t holds.
bool is_whole(const ConfigObject& value) {
  return value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>())
                                    : value.is_number_integer();
}

}  // namespace

double decimal_of(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

void ConfigFields::fail(const std::string& what) const {
  throw CheckpointError(fmt::format("{}: {}", where_, what));
}

const ConfigObject* ConfigFields::find(std::string_view key) const {
  const auto found = object_->find(std::string(key));
  return found == object_->end() ? nullptr : &*found;
}

bool ConfigFields::has(std::string_view key) const {
  const ConfigObject* value = find(key);
  return value != nullptr && !value->is_null();
}

const ConfigObject& ConfigFields::at(std::string_view key) const {
  const ConfigObject* value = find(key);
  if (value == nullptr) {
    fail(fmt::format("'{}' is missing", key));
  }
  return *value;
}

void ConfigFields::refuse_unless(bool right, std::string_view key, const std::string& type) const {
  if (!right) {
    fail(fmt::format("'{}' is {}, not {}", key, at(key).dump(), type));
  }
}

int64_t ConfigFields::whole(std::string_view key, int64_t least) const {
  refuse_unless(is_whole(at(key)), key, fmt::format("a whole number up to {}", kMaxNumber));
  const auto value = at(key).get<int64_t>();
  if (value < least || value > kMaxNumber) {
    fail(fmt::format("'{}' is {}; it must be between {} and {}", key, value, least, kMaxNumber));
  }
  return value;
}

int64_t ConfigFields::extent(std::string_view key, std::optional<int64_t> fallback) const {
  return !has(key) && fallback ? *fallback : whole(key, 1);
}

int64_t ConfigFields::count(std::string_view key, int64_t fallback) const {
  return has(key) ? whole(key, 0) : fallback;
}

double ConfigFields::number(std::string_view key, double fallback) const {
  if (!has(key)) {
    return fallback;
  }
  refuse_unless(at(key).is_number(), key, "a number");
  return at(key).get<double>();
}

double ConfigFields::positive(std::string_view key, std::optional<double> fallback) const {
  if (!has(key) && !fallback) {
    fail(fmt::format("'{}' is missing", key));
  }
  const double value = number(key, fallback.value_or(0.0));
  if (!(value > 0.0) || !std::isfinite(value)) {
    fail(fmt::format("'{}' is {}; it must be above 0", key, value));
  }
  return value;
}

bool ConfigFields::flag(std::string_view key, bool fallback) const {
  if (!has(key)) {
    return fallback;
  }
  refuse_unless(at(key).is_boolean(), key, "true or false");
  return at(key).get<bool>();
}

std::string ConfigFields::text(std::string_view key, const std::string& fallback) const {
  if (!has(key)) {
    return fallback;
  }
  refuse_unless(at(key).is_string(), key, "a string");
  return at(key).get<std::string>();
}

std::vector<std::string> ConfigFields::texts(std::string_view key) const {
  std::vector<std::string> result;
  if (!has(key)) {
    return result;
  }
  refuse_unless(at(key).is_array(), key, "a list of names");
  for (const ConfigObject& value : at(key)) {
    refuse_unless(value.is_string(), key, "a list of names");
    result.push_back(value.get<std::string>());
  }
  return result;
}

std::vector<int64_t> ConfigFields::ids(std::string_view key) const {
  std::vector<int64_t> ids;
  if (!has(key)) {
    return ids;
  }
  const auto add = [&](const ConfigObject& id) {
    const bool right = is_whole(id) && id.get<int64_t>() >= 0 && id.get<int64_t>() <= kMaxNumber;
    refuse_unless(right, key, "an id or a list of them");
    ids.push_back(id.get<int64_t>());
  };
  if (at(key).is_array()) {
    for (const ConfigObject& id : at(key)) add(id);
  } else {
    add(at(key));
  }
  return ids;
}

ConfigFields ConfigFields::object(std::string_view key) const {
  refuse_unless(at(key).is_object(), key, "an object");
  return {at(key), fmt::format("{}: {}", where_, key)};
}

}  // namespace fp8train
