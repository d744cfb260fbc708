#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "base/append_file.h"
#include "base/terminal.h"

namespace fp8train {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto terminal = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
        has_colors(stderr) ? spdlog::color_mode::always : spdlog::color_mode::never);
    terminal->set_color(spdlog::level::debug, "");
    terminal->set_color(spdlog::level::info, "");
    auto created = std::make_shared<spdlog::logger>("fp8train", std::move(terminal));
    created->set_pattern("%^%l%$: %v");
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return *instance;
}

/// The lines at the end of a file. A line that cannot be written is reported by spdlog.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : path_(path), descriptor_(open_to_append(path)) {}
  ~FileSink() override { close_file(descriptor_); }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    append_whole(descriptor_, path_, {line.data(), line.size()});
  }
  void flush_() override {}

 private:
  std::string path_;
  int descriptor_;
};

/// The level of spdlog that belongs to each LogLevel.
constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                 spdlog::level::warn, spdlog::level::err};

}  // namespace

void log_info(std::string_view text) {
  logger().info("{}", without_controls(text));
}
void log_warning(std::string_view text) {
  logger().warn("{}", without_controls(text));
}

void set_log_level(LogLevel level) {
  logger().set_level(kLevels[static_cast<size_t>(level)]);
}

void open_log_file(const std::string& path) {
  auto sink = std::make_shared<FileSink>(path);
  sink->set_pattern("%Y-%m-%dT%H:%M:%S %l %v");
  logger().sinks().push_back(std::move(sink));
}

}  // namespace fp8train
