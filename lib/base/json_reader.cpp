#include "base/json_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"

namespace fp8train {

template <class Json>
Json parse_json(std::string_view text, const std::string& where, JsonKeys keys) {
  constexpr int kMaxDepth = 64;
  using Event = typename Json::parse_event_t;
  // The parser takes a NUL for the end of its input, and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) {
    throw DataError(where + ": not JSON: it holds a NUL byte");
  }
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, Event event, Json& value) {
    if (depth > kMaxDepth) {
      throw DataError(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
    }
    if (keys == JsonKeys::last_wins) {
      return true;
    }
    if (event == Event::object_start) {
      open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key) {
      const auto key = value.template get<std::string>();
      if (!open_objects.back().insert(key).second) {
        throw DataError(fmt::format("{}: the key '{}' appears twice", where, key));
      }
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
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
