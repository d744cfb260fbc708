#pragma once
// A configuration's file: YAML, or JSON under any name.

#include <string>

namespace fp8train {

/// Its text, at most one byte more than parse_yaml takes. Throws ConfigError where it cannot be
/// read.
std::string read_config_file(const std::string& path);

/// JSON as YAML reads it: blanks for the tabs between its values. Other text stays as it is.
std::string json_as_yaml(std::string text);

/// The file that `name`, a value in the file `from`, means: below the working directory, or else
/// next to `from`.
std::string named_file(const std::string& name, const std::string& from);

}  // namespace fp8train
