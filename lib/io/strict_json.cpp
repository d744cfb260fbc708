#include "io/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"

namespace fp8train::detail {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxName = 200;

}  // namespace

nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& where) {
  using Event = nlohmann::ordered_json::parse_event_t;
  // The parser takes a NUL for the end of its input, and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) {
    throw CheckpointError(where + ": not JSON: it holds a NUL byte");
  }
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, Event event, nlohmann::ordered_json& value) {
    if (depth > kMaxDepth) {
      throw CheckpointError(fmt::format("{}: nested deeper than {} levels", where, kMaxDepth));
    }
    if (event == Event::object_start) {
      open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key) {
      const auto key = value.get<std::string>();
      if (!open_objects.back().insert(key).second) {
        throw CheckpointError(fmt::format("{}: the key '{}' appears twice", where, key));
      }
    }
    return true;
  };
  try {
    return nlohmann::ordered_json::parse(text, watch);
  } catch (const nlohmann::json::parse_error& failure) {
    throw CheckpointError(not_json(where, text, failure.byte));
  } catch (const nlohmann::json::exception& failure) {  // a number that is too large
    throw CheckpointError(fmt::format("{}: not JSON: {}", where, plain_json_error(failure)));
  }
}

nlohmann::ordered_json read_strict_json(const std::string& path) {
  return as_checkpoint_error(
      [&] { return parse_strict_json(read_text_file(path, kMaxJsonFile), path); });
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' ||
                  c == '-';
         });
}

bool is_plain_path(std::string_view name) {
  const size_t slash = name.find('/');
  return slash == std::string_view::npos
             ? is_plain_name(name)
             : is_plain_name(name.substr(0, slash)) && is_plain_name(name.substr(slash + 1));
}

}  // namespace fp8train::detail
