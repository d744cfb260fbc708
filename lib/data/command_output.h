#pragma once
// Data that a program writes (`format: command`): Parquet by DuckDB, a query, a filter. The command
// runs once; what it writes is a file of the cache, which is data like any other from then on.

#include <filesystem>
#include <string>

namespace fp8train {

/// Returns the file with what /bin/sh -c `command` writes on standard output, JSON lines (.jsonl)
/// where the first byte is a brace, else text (.txt). Runs the command unless cache_folder() has
/// its output from this working directory; processes of a machine wait for the first one. Throws
/// DataError if the command fails or writes nothing, and DeviceError if the output cannot be read
/// or stored.
std::filesystem::path output_of_command(const std::string& command);

}  // namespace fp8train
