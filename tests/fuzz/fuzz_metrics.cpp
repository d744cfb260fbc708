// The input is a step and what a run has left as metrics.jsonl. Going on after the step leaves the
// whole lines that are not of later steps and have no NUL bytes, byte for byte and in their order;
// what is written then are lines that JSON readers take, with the values that were given.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/metrics.h"
#include "scratch_file.h"

namespace {

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

std::string expected(const std::string& text, int64_t step) {
  std::string lines;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    const bool is_later = json.is_object() && json.contains("step") && json["step"].is_number() &&
                          json["step"].get<double>() > static_cast<double>(step);
    const bool is_damaged = line.find('\0') != std::string::npos;
    lines += is_later || is_damaged ? "" : line + "\n";
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) {
    return 0;
  }
  const int64_t step = data[0] + 256 * data[1];
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::string& path = scratch_path();
  write_scratch(path, text);
  const std::string remaining = expected(text, step);
  {
    fp8train::MetricsWriter writer(path, step);
    check(read_scratch(path) == remaining);
    double number = 0;
    std::memcpy(&number, data, std::min(size, sizeof number));
    const std::string name = text.substr(0, 20);
    writer.write({{"step", step}, {"number", number}, {"text", text}, {"inner", {{name, true}}}});
    const std::string line = read_scratch(path).substr(remaining.size());
    check(line.ends_with('\n') && line.find('\n') == line.size() - 1);
    const nlohmann::json json = nlohmann::json::parse(line);
    check(json.at("step") == step && json.at("inner").size() == 1 && json.at("text").is_string());
    check(std::isfinite(number) ? json.at("number").get<double>() == number
                                : json.at("number").is_null());
  }
  const std::string whole = read_scratch(path);
  { const fp8train::MetricsWriter again(path, step); }
  check(read_scratch(path) == whole);
  return 0;
}
