#include "config/fields/field.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/nearest.h"
#include "base/screen.h"
#include "base/text.h"
#include "base/written_path.h"
#include "config/fields/scalar.h"

namespace fp8train {
namespace {

using Kind = YamlNode::Kind;

bool is_plain(const YamlNode& node) {
  return node.kind == Kind::scalar && !node.quoted;
}

/// Quotes make a text of what is none without them; around other texts they say nothing.
bool is_text_by_quotes(const YamlNode& node) {
  const std::string& text = node.text;
  return node.kind == Kind::scalar && node.quoted &&
         (text.empty() || parse_number(text) || parse_bool(text));
}

/// A hint when somebody quoted a value that is not a text.
std::string quote_hint(const FieldValue& value) {
  return is_text_by_quotes(value.node()) && !value.node().text.empty() ? "remove the quotes" : "";
}

}  // namespace

void FieldValue::expected(const std::string& what, const std::string& hint) const {
  if (!node_.reported) {
    fail(fmt::format("expected {}, got {}{}{}", what, describe(node_), hint.empty() ? "" : "; ",
                     hint));
  }
}

void FieldValue::fail(const std::string& text) const {
  problems_.add(mark_, key_, text);
}

SourceMark FieldValue::mark_of(int line, int column) const {
  return line == 0 ? mark_ : SourceMark{mark_.source, line, column};
}

FieldValue FieldValue::child(const YamlNode& node, std::string key) const {
  return {node, std::move(key), mark_of(node.line, node.column), problems_};
}

FieldValue FieldValue::child(const YamlKey& written, const YamlNode& node, std::string key) const {
  return {node, std::move(key), mark_of(written.line, written.column), problems_};
}

bool Range::holds(double value) const {
  const bool high_enough = !min || (above_min ? value > *min : value >= *min);
  const bool low_enough = !max || (below_max ? value < *max : value <= *max);
  return high_enough && low_enough;
}

std::string Range::text() const {
  if (min && max && !is_far()) {
    return fmt::format(" in {}{}, {}{}", above_min ? '(' : '[', *min, *max, below_max ? ')' : ']');
  }
  return min ? fmt::format(" {} {}", above_min ? ">" : ">=", *min) : "";
}

std::string Range::far_hint(double value) const {
  return is_far() && value > *max ? fmt::format("at most {}", *max) : "";
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case Kind::null:
      return "nothing";
    case Kind::sequence:
      return "a list";
    case Kind::map:
      return "a section";
    case Kind::scalar:
      break;
  }
  return quoted_for_message(node.text) + (is_text_by_quotes(node) ? " in quotes" : "");
}

std::optional<int64_t> read_integer(const FieldValue& value, const Range& range,
                                    const std::string& what) {
  const auto whole = is_plain(value.node()) ? parse_whole(value.node().text) : std::nullopt;
  constexpr auto kHighest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!whole || whole->magnitude > kHighest) {
    const auto number = is_plain(value.node()) ? parse_number(value.node().text) : std::nullopt;
    value.expected(what, number ? range.far_hint(*number) : quote_hint(value));
    return std::nullopt;
  }
  const auto magnitude = static_cast<int64_t>(whole->magnitude);
  const int64_t result = whole->negative ? -magnitude : magnitude;
  if (!range.holds(static_cast<double>(result))) {
    value.expected(what, range.far_hint(static_cast<double>(result)));
    return std::nullopt;
  }
  return result;
}

std::optional<uint64_t> read_unsigned(const FieldValue& value, const std::string& what) {
  const auto whole = is_plain(value.node()) ? parse_whole(value.node().text) : std::nullopt;
  if (!whole || whole->negative) {
    value.expected(what, quote_hint(value));
    return std::nullopt;
  }
  return whole->magnitude;
}

std::optional<double> read_number(const FieldValue& value, const Range& range,
                                  const std::string& what) {
  const auto number = is_plain(value.node()) ? parse_number(value.node().text) : std::nullopt;
  if (!number || !range.holds(*number)) {
    value.expected(what, number ? range.far_hint(*number) : quote_hint(value));
    return std::nullopt;
  }
  return number;
}

std::optional<double> read_duration(const FieldValue& value, const Range& range,
                                    const std::string& what) {
  const YamlNode& node = value.node();
  const auto seconds = node.kind == Kind::scalar ? parse_duration(node.text) : std::nullopt;
  if (!seconds || !range.holds(*seconds)) {
    value.expected(what);
    return std::nullopt;
  }
  return seconds;
}

std::optional<bool> read_bool(const FieldValue& value, const std::string& what) {
  const auto flag = is_plain(value.node()) ? parse_bool(value.node().text) : std::nullopt;
  if (!flag) {
    value.expected(what, quote_hint(value));
  }
  return flag;
}

std::optional<std::string> read_text(const FieldValue& value, const std::string& what) {
  if (value.node().kind != Kind::scalar || value.node().text.empty()) {
    value.expected(what);
    return std::nullopt;
  }
  return value.node().text;
}

namespace {

std::optional<std::string> read_path_to(PathUse use, const FieldValue& value,
                                        const std::string& what) {
  constexpr size_t kMaxNameBytes = 255;   // NAME_MAX of Linux file systems
  constexpr size_t kMaxPathBytes = 3840;  // PATH_MAX less the names inside a run's folder
  const auto text = read_text(value, what);
  if (!text) {
    return std::nullopt;
  }
  WrittenPath written = written_path(*text, use);
  if (!written.problem.empty()) {
    value.fail(written.problem);
    return std::nullopt;
  }
  std::string path = std::move(written.path);
  if (has_control(path)) {
    value.fail("a path has no line breaks or other control characters");
    return std::nullopt;
  }
  size_t longest = 0;
  for (const std::string& name : split(path, '/')) {
    longest = std::max(longest, name.size());
  }
  if (longest > kMaxNameBytes) {
    value.fail(fmt::format("a name of {} bytes is longer than the {} that file systems take",
                           longest, kMaxNameBytes));
    return std::nullopt;
  }
  if (path.size() > kMaxPathBytes) {
    value.fail(fmt::format("a path of {} bytes is longer than {}", path.size(), kMaxPathBytes));
    return std::nullopt;
  }
  return path;
}

}  // namespace

std::optional<std::string> read_path(const FieldValue& value, const std::string& what) {
  return read_path_to(PathUse::input, value, what);
}

std::optional<std::string> read_output_path(const FieldValue& value, const std::string& what) {
  return read_path_to(PathUse::output, value, what);
}

std::optional<std::string> read_choice(const FieldValue& value,
                                       const std::vector<std::string>& choices,
                                       const std::string& what) {
  if (value.node().kind != Kind::scalar) {
    value.expected(what);
    return std::nullopt;
  }
  const std::string text = lower(value.node().text);
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) {
    return text;
  }
  const std::string near = nearest_name(text, choices);
  value.expected(what, near.empty() ? "" : fmt::format("did you mean \"{}\"?", near));
  return std::nullopt;
}

bool for_each_key(const FieldValue& map, const std::string& what,
                  const std::function<void(const std::string&, const FieldValue&)>& visit) {
  const YamlNode& node = map.node();
  if (node.kind != Kind::map) {
    map.expected(what);
    return false;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string& name = node.keys[i].text;
    visit(name, map.child(node.items[i], map.key().empty() ? name : map.key() + "." + name));
  }
  return true;
}

bool read_keys(const FieldValue& map, const std::string& what, const std::vector<KeyReader>& keys) {
  bool good = true;
  size_t position = 0;
  const bool is_map =
      for_each_key(map, what, [&](const std::string& name, const FieldValue& value) {
        const YamlKey& written = map.node().keys[position++];
        const auto known = std::find_if(keys.begin(), keys.end(),
                                        [&](const KeyReader& key) { return key.name == name; });
        if (known != keys.end()) {
          good = known->read(value) && good;
          return;
        }
        good = false;
        std::vector<std::string> names;
        for (const KeyReader& key : keys) {
          names.push_back(key.name);
        }
        const std::string near = nearest_name(name, names);
        map.child(written, value.node(), value.key())
            .fail("unknown key; " + (near.empty() ? "there are: " + joined(names)
                                                  : fmt::format("did you mean \"{}\"?", near)));
      });
  return is_map && good;
}

}  // namespace fp8train
