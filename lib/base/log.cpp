#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/screen.h"

namespace fp8train {
namespace {

/// Lines on standard error, in the width of a terminal.
class TerminalSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto name = spdlog::level::to_string_view(message.level);
    const std::string level(name.data(), name.size());
    print_fitted(
        stderr, "{}: {}\n",
        message.level == spdlog::level::warn ? colored(stderr, Color::yellow, level) : level,
        std::string_view(message.payload.data(), message.payload.size()));
  }
  void flush_() override { std::fflush(stderr); }
};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>("fp8train", std::make_shared<TerminalSink>());
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return *instance;
}

/// The lines at the end of a file. A line that cannot be written is reported by spdlog.
class FileSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(const std::string& path) : file_(path) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    file_.append({line.data(), line.size()});
  }
  void flush_() override {}

 private:
  AppendedFile file_;
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

void log_reported_error(std::string_view text) {
  const auto& sinks = logger().sinks();
  if (sinks.size() > 1) {
    sinks.front()->set_level(spdlog::level::off);
    logger().error("{}", without_controls(text));
    sinks.front()->set_level(spdlog::level::trace);
  }
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
