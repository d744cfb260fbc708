#pragma once
// One setting as data: its key, what it accepts, one line of documentation, and how it is read from
// YAML into Settings and written back. Everything that knows about keys (validation, defaults,
// `config show`, `config explain`, the documentation page) walks the table of these.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"
#include "config/yaml/problems.h"
#include "config/yaml/yaml_tree.h"

namespace fp8train {

struct CheckContext;

/// A value on its way into Settings, with everything needed to complain about it.
class FieldValue {
 public:
  FieldValue(const YamlNode& node, std::string key, SourceMark mark, Problems& problems)
      : node_(node), key_(std::move(key)), mark_(mark), problems_(problems) {}

  const YamlNode& node() const { return node_; }
  const std::string& key() const { return key_; }

  /// Adds the problem "expected `what`, got ..."; `hint` is appended. Adds none if the node is
  /// reported already.
  void expected(const std::string& what, const std::string& hint = "") const;
  /// Adds a problem at this value.
  void fail(const std::string& text) const;

  /// Returns an element of a list or a value of a map, under `key`.
  FieldValue child(const YamlNode& node, std::string key) const;
  /// Returns the value of the key `written` in a map of this value.
  FieldValue child(const YamlKey& written, const YamlNode& node, std::string key) const;

 private:
  SourceMark mark_of(int line, int column) const;

  const YamlNode& node_;
  std::string key_;
  SourceMark mark_;
  Problems& problems_;
};

/// The parts of the wizard, in its order, which is that of title_of().
enum class Topic {
  data,
  hardware,
  model,
  tokens,
  precision,
  optimization,
  parallelism,
  checkpoints,
  job,
};

/// How the wizard asks for a field.
struct Question {
  Topic topic = Topic::model;
  std::string text;  ///< a few words: "Peak learning rate"
  /// False: it is not asked with these settings. Null: always asked.
  std::function<bool(const Settings&)> when = nullptr;
  std::vector<std::string> unless;  ///< answers with which it has no meaning
  /// The answer in YAML that is offered; empty: none. Null: the value that the field has.
  std::function<std::string(const Settings&)> suggest = nullptr;
  /// Returns lines of at most so many columns on the values that there are.
  std::function<std::string(size_t columns)> preface = nullptr;
  bool optional = false;  ///< it may stay unset
  bool changes_memory = false;
};

/// Upper bounds where a field needs none of its own. Beyond lies a slip of a key, whose products
/// overflow or whose loops do not end.
constexpr double kMaxWhole = 1e12;
constexpr double kMaxNumber = 1e40;
constexpr double kMaxSeconds = 3650.0 * 86400;

/// Bounds of a number; the open ends are excluded.
struct Range {
  std::optional<double> min;
  std::optional<double> max;
  bool above_min = false;
  bool below_max = false;

  bool holds(double value) const;
  /// Whether the upper bound is so far that only slips come to it.
  bool is_far() const { return max && *max >= kMaxWhole; }
  /// " >= 1", " in [0, 1)", or empty; a far bound is not named.
  std::string text() const;
  /// "at most 1000000000000" for a value beyond a far bound; else empty.
  std::string far_hint(double value) const;
};

/// The range of a field of one number.
struct NumberRange {
  Range range;
  bool whole = false;
};

struct Field {
  std::string key;                                   ///< dotted: "optimizer.lr"
  std::string accepts;                               ///< "number > 0", "one of adamw, sgd"
  std::string doc;                                   ///< one line, without a full stop
  std::vector<std::string> aliases;                  ///< other dotted keys for the same setting
  std::vector<std::string> choices;                  ///< all values that there are; empty: no list
  bool input_only = false;                           ///< read, but written under other keys
  std::optional<NumberRange> number = std::nullopt;  ///< set where the value is one number

  /// Reads the value; complains to it when it cannot be used, leaving Settings as they are.
  std::function<void(Settings&, const FieldValue&)> read;
  /// Returns the value as YAML in one line; empty when it is not set.
  std::function<std::string(const Settings&)> write;
  /// False: the key would be refused together with the other settings. Null: always true.
  std::function<bool(const Settings&)> applies;
  /// The wizard's question; nothing: it does not ask.
  std::optional<Question> question = std::nullopt;
  /// Adds a problem if the value contradicts other settings (config/fields/check_context.h). Null
  /// if the field has no check.
  std::function<void(const CheckContext&)> check = nullptr;

  // Each returns the field with one part set.
  Field also(std::vector<std::string> names) && {
    aliases = std::move(names);
    return std::move(*this);
  }
  Field when(std::function<bool(const Settings&)> condition) && {
    applies = std::move(condition);
    return std::move(*this);
  }
  Field asked(Question how) && {
    question = std::move(how);
    return std::move(*this);
  }
  Field checked(std::function<void(const CheckContext&)> how) && {
    check = std::move(how);
    return std::move(*this);
  }
};

/// [min, ...): the bound is allowed.
inline Range at_least(double min) {
  return {min, {}, false, false};
}
/// (min, ...): the bound is not allowed.
inline Range above(double min) {
  return {min, {}, true, false};
}
/// [min, max]: both bounds are allowed.
inline Range between(double min, double max) {
  return {min, max, false, false};
}
/// [min, max): the lower bound is allowed, the upper one is not.
inline Range from_up_to(double min, double max) {
  return {min, max, false, true};
}
/// (min, max]: the upper bound is allowed, the lower one is not.
inline Range above_up_to(double min, double max) {
  return {min, max, true, false};
}

/// Returns `range` with an upper bound, its own or else `most`.
inline Range bounded(Range range, double most) {
  range.max = range.max ? range.max : most;
  return range;
}

/// Describes the content of `node` for messages: `"abc"`, `a list`, `nothing`.
std::string describe(const YamlNode& node);

// Readers. `what` is Field::accepts. Each complains and returns nothing when the value is
// something else.

/// Reads a whole number within the range.
std::optional<int64_t> read_integer(const FieldValue& value, const Range& range,
                                    const std::string& what);
/// Reads a whole number from 0 to 2^64 - 1.
std::optional<uint64_t> read_unsigned(const FieldValue& value, const std::string& what);
/// Reads a finite number within the range.
std::optional<double> read_number(const FieldValue& value, const Range& range,
                                  const std::string& what);
/// Reads seconds within the range.
std::optional<double> read_duration(const FieldValue& value, const Range& range,
                                    const std::string& what);
/// Reads true or false.
std::optional<bool> read_bool(const FieldValue& value, const std::string& what);
/// Reads one text, which is not empty.
std::optional<std::string> read_text(const FieldValue& value, const std::string& what);
/// Reads a text whose parts file systems take as names.
std::optional<std::string> read_path(const FieldValue& value, const std::string& what);
/// The same of a path that a run writes to.
std::optional<std::string> read_output_path(const FieldValue& value, const std::string& what);
/// Reads one of the choices, which are in lower case, from a text in any case.
std::optional<std::string> read_choice(const FieldValue& value,
                                       const std::vector<std::string>& choices,
                                       const std::string& what);
/// Calls `visit` with each key of a map and its value. Complains where it is none, and returns
/// false.
bool for_each_key(const FieldValue& map, const std::string& what,
                  const std::function<void(const std::string&, const FieldValue&)>& visit);

/// A key of a map, and the function that reads its value: it returns false where the value cannot
/// be used.
struct KeyReader {
  std::string name;
  std::function<bool(const FieldValue&)> read;
};
/// Reads a map of these keys; another one is a problem. Returns false where something cannot be
/// used.
bool read_keys(const FieldValue& map, const std::string& what, const std::vector<KeyReader>& keys);

/// Puts a value that could be read into `target`, and says whether it could.
template <class T, class Value>
bool assign(T& target, std::optional<Value> value) {
  if (value) {
    target = *std::move(value);
  }
  return value.has_value();
}

}  // namespace fp8train
