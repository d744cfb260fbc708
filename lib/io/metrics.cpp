#include "io/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json_reader.h"
#include "base/json_text.h"
#include "base/text.h"

namespace fp8train {
namespace {

constexpr size_t kMaxMetrics = size_t{4} << 30;

/// A line stays unless it is a JSON object with a "step" above the one resumed from.
bool stays(std::string_view line, int64_t resume_step) {
  const auto object = json_object_or_empty(line);
  const auto step = object.find("step");
  return step == object.end() || !step->is_number() ||
         step->get<double>() <= static_cast<double>(resume_step);
}

/// Returns the text of `read`. Throws its DataError as a DeviceError.
template <typename Read>
std::string as_device_error(const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw DeviceError(error.what());
  }
}

/// The last bytes of a file, `most` at most.
std::string read_end(const std::filesystem::path& path, uint64_t most) {
  const InputFile file(path);
  std::string text(std::min(file.size(), most), '\0');
  file.read(file.size() - text.size(), text.data(), text.size());
  return text;
}

/// Returns the number of damaged lines, which are left out.
int64_t trim(const std::filesystem::path& path, std::optional<int64_t> resume_step) {
  if (!std::filesystem::exists(path)) return 0;
  const std::string text = as_device_error([&] { return read_text_file(path, kMaxMetrics); });
  std::string stored;
  int64_t damaged = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // cut off
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.find('\0') != std::string_view::npos) {
      ++damaged;
    } else if (!resume_step || stays(line, *resume_step)) {
      stored.append(line).push_back('\n');
    }
    begin = end + 1;
  }
  if (stored != text) {
    write_file_atomically(path, stored);
  }
  return damaged;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& path, std::optional<int64_t> resume_step)
    : damaged_lines_(trim(path, resume_step)), file_(path) {}

void MetricsWriter::write(const nlohmann::ordered_json& object) {
  file_.append(json_text(object) + "\n");
}

int64_t last_step_in(const std::filesystem::path& path) {
  constexpr uint64_t kTail = 1 << 20;  // many lines
  if (!std::filesystem::exists(path)) return 0;
  int64_t last = 0;
  for (const std::string& line :
       split(as_device_error([&] { return read_end(path, kTail); }), '\n')) {
    const auto object = json_object_or_empty(line);
    if (object.contains("step") && object["step"].is_number()) {
      last = std::max(last, object["step"].get<int64_t>());
    }
  }
  return last;
}

void write_json_file(const std::filesystem::path& path, const nlohmann::ordered_json& object) {
  write_file_atomically(path, json_text(object, 2) + "\n");
}

}  // namespace fp8train
