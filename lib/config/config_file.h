#pragma once
// A configuration's file: YAML, or JSON under any name.

#include <cstddef>
#include <string>

#include "config/yaml_tree.h"

namespace fp8train {

/// Its text, at most one byte more than parse_yaml takes. Throws ConfigError where it cannot be
/// read.
std::string read_config_file(const std::string& path);

/// The keys of such a text, whose source has the number `source`; its syntax is recognized here.
YamlNode parse_config(const std::string& text, size_t source, Problems& problems);

/// The file that `name`, a value in the file `from`, means: below the working directory, or else
/// next to `from`.
std::string named_file(const std::string& name, const std::string& from);

}  // namespace fp8train
