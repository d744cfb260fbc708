#include "base/json_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"

namespace fp8train {

namespace {

/// Reads a text for its depth and its keys alone. The parser's own callback would look through all
/// members of an object after each of them.
template <class Json>
class Checks final : public nlohmann::json_sax<Json> {
 public:
  Checks(const std::string& where, JsonKeys keys) : where_(where), keys_(keys) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(typename Json::number_integer_t) override { return true; }
  bool number_unsigned(typename Json::number_unsigned_t) override { return true; }
  bool number_float(typename Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(typename Json::binary_t&) override { return true; }
  bool start_object(size_t) override { return begin(); }
  bool start_array(size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& key) override {
    if (keys_ == JsonKeys::unique && !open_.back().insert(key).second) {
      throw DataError(fmt::format("{}: the key '{}' appears twice", where_, key));
    }
    return true;
  }
  /// The second reading names it.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool begin() {
    constexpr size_t kMaxDepth = 64;
    if (open_.size() == kMaxDepth) {
      throw DataError(fmt::format("{}: nested deeper than {} levels", where_, kMaxDepth));
    }
    open_.emplace_back();
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  const std::string& where_;
  JsonKeys keys_;
  std::vector<std::set<std::string>> open_;  ///< the keys of each object, none of an array
};

}  // namespace

template <class Json>
Json parse_json(std::string_view text, const std::string& where, JsonKeys keys) {
  // The parser takes a NUL for the end of its input, and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) {
    throw DataError(where + ": not JSON: it holds a NUL byte");
  }
  try {
    Checks<Json> checks(where, keys);
    Json::sax_parse(text, &checks);
    return Json::parse(text);
  } catch (const nlohmann::json::parse_error& failure) {
    throw DataError(not_json(where, text, failure.byte));
  } catch (const nlohmann::json::exception& failure) {  // a number that is too large
    throw DataError(fmt::format("{}: not JSON: {}", where, plain_json_error(failure)));
  }
}

template <class Json>
Json read_json_file(const std::filesystem::path& path, size_t max_bytes, JsonKeys keys) {
  return parse_json<Json>(read_text_file(path, max_bytes), path.string(), keys);
}

std::string json_type_of(const nlohmann::json& value) {
  const std::string type = value.type_name();
  return value.is_null()      ? type
         : value.is_boolean() ? "true or false"
                              : (type.find_first_of("ao") == 0 ? "an " : "a ") + type;
}

nlohmann::json json_object_or_empty(std::string_view text) {
  try {
    nlohmann::json value = parse_json(text, "", JsonKeys::last_wins);
    return value.is_object() ? std::move(value) : nlohmann::json::object();
  } catch (const DataError&) {
    return nlohmann::json::object();
  }
}

template nlohmann::json parse_json(std::string_view, const std::string&, JsonKeys);
template nlohmann::ordered_json parse_json(std::string_view, const std::string&, JsonKeys);
template nlohmann::json read_json_file(const std::filesystem::path&, size_t, JsonKeys);
template nlohmann::ordered_json read_json_file(const std::filesystem::path&, size_t, JsonKeys);

}  // namespace fp8train
