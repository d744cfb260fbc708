#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/error.h"
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
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S %l %v");
    logger().sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& error) {
    throw DeviceError("cannot open log file " + path + ": " + error.what());
  }
}

}  // namespace fp8train
