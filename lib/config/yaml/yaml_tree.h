#pragma once
// YAML text as a plain tree that stores lines, columns and quoting. It accepts less than YAML: one
// document, no anchors, aliases or tags, no key twice, plain text as keys, bounded size and depth.
// Owns all its text; nothing of the YAML library leaks out.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "config/yaml/problems.h"

namespace fp8train {

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr size_t kMaxYamlDepth = 16;

struct YamlKey {
  std::string text;
  int line = 0;  ///< counted from 1
  int column = 0;
  std::string spelled;  ///< dotted, where the user wrote another key; else empty
};

/// A value of a YAML file and its position.
struct YamlNode {
  enum class Kind { null, scalar, sequence, map };

  Kind kind = Kind::null;
  std::string text;  ///< scalar
  bool quoted = false;
  bool reported = false;  ///< already complained about: readers say nothing more
  int line = 0;
  int column = 0;
  std::vector<YamlKey> keys;    ///< map: one per item, unique
  std::vector<YamlNode> items;  ///< sequence, map
};

/// Returns the single document in `text`; a null node when there is none. All errors go to
/// `problems` with a mark in `source` and `path` (dotted, may be empty) in front of the keys; after
/// an error that ends the reading (syntax, depth, size, a second document) the root is `reported`
/// and the tree has the part that was complete before it.
YamlNode parse_yaml(std::string_view text, const std::string& path, size_t source,
                    Problems& problems);

// JSON and TOML among configurations, which are read as YAML.

/// Returns a JSON object, of which the first key is in double quotes, as YAML reads it, with every
/// mark where it was: blanks for the tabs between its values and for comments (`//`, `/* */` and
/// `#`, as in Hjson; DeepSpeed reads its files so, deepspeed/runtime/config.py). Other text stays
/// as it is, flow mappings of YAML too: `/*` and `//` may begin a path there.
std::string json_as_yaml(std::string text);

/// Whether the first line that is neither empty nor a comment is `[section]` or `key = value`:
/// TOML, or a configuration in Python.
bool is_toml(std::string_view text);

}  // namespace fp8train
