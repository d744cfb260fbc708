#include "io/strict_json.h"

#include <algorithm>
#include <cctype>

#include "base/json_reader.h"

namespace fp8train::detail {
namespace {

constexpr size_t kMaxName = 200;

}  // namespace

nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& where) {
  return as_checkpoint_error([&] { return parse_json<nlohmann::ordered_json>(text, where); });
}

nlohmann::ordered_json read_strict_json(const std::string& path) {
  return as_checkpoint_error([&] { return read_json_file<nlohmann::ordered_json>(path); });
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
