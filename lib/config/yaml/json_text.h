#pragma once
// JSON and TOML among configurations, which are read as YAML.

#include <string>
#include <string_view>

namespace fp8train {

/// Returns a JSON object, of which the first key is in double quotes, as YAML reads it, with every
/// mark where it was: blanks for the tabs between its values and for comments (`//`, `/* */` and
/// `#`, as in Hjson; DeepSpeed reads its files so, deepspeed/runtime/config.py). Other text stays
/// as it is, flow mappings of YAML too: `/*` and `//` may begin a path there.
std::string json_as_yaml(std::string text);

/// Whether the first line that is neither empty nor a comment is `[section]` or `key = value`:
/// TOML, or a configuration in Python.
bool is_toml(std::string_view text);

}  // namespace fp8train
