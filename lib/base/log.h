#pragma once
// Log lines with a level, written to standard error and, once opened, to a file. Any thread may
// write lines. The program's entry sets the level, and a run raises it on ranks that do not lead;
// only a run opens the file. Libraries call log_info and the like.

#include <string>
#include <string_view>

namespace fp8train {

enum class LogLevel { debug, info, warning, error };

/// Writes a line, without control characters (base/screen.h). Any thread may call these.
void log_info(std::string_view text);
void log_warning(std::string_view text);

/// Writes a line with the level error to the file alone, if one is open: standard error has the
/// text, as whoever reports the error words it. Where the file cannot be written, spdlog says so on
/// standard error.
void log_reported_error(std::string_view text);

/// Drops lines below `level`. The default is info.
void set_log_level(LogLevel level);

/// From now on every line also goes to the end of `path`. Not for use while another thread writes
/// lines. Throws DeviceError when the file cannot be opened.
void open_log_file(const std::string& path);

}  // namespace fp8train
