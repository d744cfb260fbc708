#include "model/families/config_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/error.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxNumber = int64_t{1} << 31;

std::string list_text(const ConfigValue::List& list) {
  std::string text;
  for (const ConfigValue& value : list) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", value.text());
  }
  return fmt::format("[{}]", text);
}

std::string object_text(const ConfigObject& object) {
  std::string text;
  for (const ConfigEntry& entry : object) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "" : ",", entry.key, entry.value.text());
  }
  return fmt::format("{{{}}}", text);
}

}  // namespace

ConfigValue::ConfigValue() = default;
ConfigValue::~ConfigValue() = default;
ConfigValue::ConfigValue(const ConfigValue& other) = default;
ConfigValue::ConfigValue(ConfigValue&& other) noexcept = default;
ConfigValue& ConfigValue::operator=(const ConfigValue& other) = default;
ConfigValue& ConfigValue::operator=(ConfigValue&& other) noexcept = default;
ConfigValue::ConfigValue(bool value) : data_(value) {}
ConfigValue::ConfigValue(int64_t value) : data_(value) {}
ConfigValue::ConfigValue(double value) : data_(value) {}
ConfigValue::ConfigValue(const char* text) : data_(std::string(text)) {}
ConfigValue::ConfigValue(std::string_view text) : data_(std::string(text)) {}
ConfigValue::ConfigValue(std::string text) : data_(std::move(text)) {}
ConfigValue::ConfigValue(List list) : data_(std::move(list)) {}
ConfigValue::ConfigValue(ConfigObject object) : data_(std::move(object)) {}

std::string ConfigValue::text() const {
  struct Writer {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return fmt::format("{}", value); }
    std::string operator()(const std::string& value) const { return fmt::format("\"{}\"", value); }
    std::string operator()(const List& list) const { return list_text(list); }
    std::string operator()(const ConfigObject& object) const { return object_text(object); }
  };
  return std::visit(Writer(), data_);
}

void set(ConfigObject& object, std::string_view key, ConfigValue value) {
  const auto found = std::find_if(object.begin(), object.end(),
                                  [&](const ConfigEntry& entry) { return entry.key == key; });
  if (found != object.end()) {
    found->value = std::move(value);
  } else {
    object.push_back({std::string(key), std::move(value)});
  }
}

double decimal_of(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

void ConfigFields::fail(const std::string& what) const {
  throw CheckpointError(fmt::format("{}: {}", where_, what));
}

const ConfigValue* ConfigFields::find(std::string_view key) const {
  const auto found = std::find_if(object_->begin(), object_->end(),
                                  [&](const ConfigEntry& entry) { return entry.key == key; });
  return found == object_->end() ? nullptr : &found->value;
}

bool ConfigFields::has(std::string_view key) const {
  const ConfigValue* value = find(key);
  return value != nullptr && !value->is_null();
}

const ConfigValue& ConfigFields::at(std::string_view key) const {
  const ConfigValue* value = find(key);
  if (value == nullptr) {
    fail(fmt::format("'{}' is missing", key));
  }
  return *value;
}

int64_t ConfigFields::whole(std::string_view key, int64_t least) const {
  const auto* value = std::get_if<int64_t>(&at(key).data());
  if (value == nullptr) {
    fail(fmt::format("'{}' is {}, not a whole number up to {}", key, at(key).text(), kMaxNumber));
  }
  if (*value < least || *value > kMaxNumber) {
    fail(fmt::format("'{}' is {}; it must be between {} and {}", key, *value, least, kMaxNumber));
  }
  return *value;
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
  const ConfigValue::Data& data = at(key).data();
  if (const auto* whole = std::get_if<int64_t>(&data)) {
    return static_cast<double>(*whole);
  }
  const auto* value = std::get_if<double>(&data);
  if (value == nullptr) {
    fail(fmt::format("'{}' is {}, not a number", key, at(key).text()));
  }
  return *value;
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
  const auto* value = std::get_if<bool>(&at(key).data());
  if (value == nullptr) {
    fail(fmt::format("'{}' is {}, not true or false", key, at(key).text()));
  }
  return *value;
}

std::string ConfigFields::text(std::string_view key, const std::string& fallback) const {
  if (!has(key)) {
    return fallback;
  }
  const auto* value = std::get_if<std::string>(&at(key).data());
  if (value == nullptr) {
    fail(fmt::format("'{}' is {}, not a string", key, at(key).text()));
  }
  return *value;
}

std::vector<std::string> ConfigFields::texts(std::string_view key) const {
  std::vector<std::string> result;
  if (!has(key)) {
    return result;
  }
  const auto* list = std::get_if<ConfigValue::List>(&at(key).data());
  const ConfigValue::List single(1);
  for (const ConfigValue& value : list == nullptr ? single : *list) {
    const auto* text = std::get_if<std::string>(&value.data());
    if (text == nullptr) {
      fail(fmt::format("'{}' is {}, not a list of names", key, at(key).text()));
    }
    result.push_back(*text);
  }
  return result;
}

std::vector<int64_t> ConfigFields::ids(std::string_view key) const {
  std::vector<int64_t> ids;
  if (!has(key)) {
    return ids;
  }
  const auto* list = std::get_if<ConfigValue::List>(&at(key).data());
  const ConfigValue::List single = {at(key)};
  for (const ConfigValue& value : list == nullptr ? single : *list) {
    const auto* id = std::get_if<int64_t>(&value.data());
    if (id == nullptr || *id < 0 || *id > kMaxNumber) {
      fail(fmt::format("'{}' is {}, not an id or a list of them", key, at(key).text()));
    }
    ids.push_back(*id);
  }
  return ids;
}

ConfigFields ConfigFields::object(std::string_view key) const {
  const auto* object = std::get_if<ConfigObject>(&at(key).data());
  if (object == nullptr) {
    fail(fmt::format("'{}' is {}, not an object", key, at(key).text()));
  }
  return {*object, fmt::format("{}: {}", where_, key)};
}

}  // namespace fp8train
