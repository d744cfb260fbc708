#pragma once
// Makes fields from members of Settings: `integer("eval.interval", in(&Settings::eval,
// &EvalSettings::interval), at_least(0), "...")`. Only the parts of the table include this.

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/names.h"
#include "base/text.h"
#include "config/fields/field.h"
#include "config/fields/scalar.h"

namespace fp8train::fields {

/// A function from (const) Settings to the member that the pointers lead to.
template <class... Members>
auto in(Members... members) {
  return [members...](auto& settings) -> auto& {
    return (settings.*....*members);
  };
}

/// A field whose reader yields an optional value that is then assigned. `write` takes the member.
template <class Get, class Read, class Write>
Field make(std::string key, std::string accepts, std::string doc, Get get, Read read, Write write) {
  Field field;
  field.key = std::move(key);
  field.accepts = accepts;
  field.doc = std::move(doc);
  field.read = [get, read, accepts](Settings& settings, const FieldValue& value) {
    if (auto result = read(value, accepts)) {
      using Member = std::remove_reference_t<decltype(get(settings))>;
      get(settings) = static_cast<Member>(*std::move(result));
    }
  };
  field.write = [get, write](const Settings& settings) { return write(get(settings)); };
  return field;
}

inline Field with_range(Field field, const Range& range, bool whole) {
  field.number = NumberRange{range, whole};
  return field;
}

/// One of the readers that take a range, and the range.
template <class Value>
struct RangedReader {
  std::optional<Value> (*read)(const FieldValue&, const Range&, const std::string&);
  Range range;

  std::optional<Value> operator()(const FieldValue& value, const std::string& what) const {
    return read(value, range, what);
  }
};

/// A field of one number within the reader's range.
template <class Get, class Value, class Write>
Field ranged(std::string key, std::string accepts, std::string doc, Get get,
             const RangedReader<Value>& read, Write write) {
  return with_range(make(std::move(key), std::move(accepts), std::move(doc), get, read, write),
                    read.range, std::is_same_v<Value, int64_t>);
}

/// Makes a field of a whole number within the range; an open upper end is kMostWhole.
template <class Get>
Field integer(std::string key, Get get, Range range, std::string doc) {
  range = bounded(range, kMostWhole);
  return ranged(std::move(key), "a whole number" + range.text(), std::move(doc), get,
                RangedReader<int64_t>{read_integer, range},
                [](int64_t value) { return std::to_string(value); });
}

/// Makes a field as integer() does, for a std::optional member.
template <class Get>
Field maybe_integer(std::string key, Get get, Range range, std::string doc) {
  range = bounded(range, kMostWhole);
  return ranged(
      std::move(key), "a whole number" + range.text(), std::move(doc), get,
      RangedReader<int64_t>{read_integer, range},
      [](const std::optional<int64_t>& value) { return value ? std::to_string(*value) : ""; });
}

/// A whole number of MiB for a member that counts bytes.
template <class Get>
Field mebibytes(std::string key, Get get, Range range, std::string doc) {
  return with_range(make(
                        std::move(key), "a whole number" + range.text(), std::move(doc), get,
                        [range](const auto& value, const auto& what) {
                          const std::optional<int64_t> count = read_integer(value, range, what);
                          return count ? std::optional(*count << 20) : std::nullopt;
                        },
                        [](int64_t bytes) { return std::to_string(bytes >> 20); }),
                    range, true);
}

/// Makes a field from 1 to `most`. 0 stands for "not set", which a user can give only as null, if
/// `null_is_unset`.
template <class Get>
Field optional_count(std::string key, Get get, double most, std::string doc,
                     bool null_is_unset = false) {
  const Range range = between(1, most);
  Field field = make(
      std::move(key), "a whole number" + range.text(), std::move(doc), get,
      [range, null_is_unset](const FieldValue& value, const auto& what) {
        const bool is_null = value.node().kind == YamlNode::Kind::null && !value.node().reported;
        return is_null && null_is_unset ? std::optional<int64_t>(0)
                                        : read_integer(value, range, what);
      },
      [](int64_t value) { return value == 0 ? "" : std::to_string(value); });
  return with_range(std::move(field), range, true);
}

/// Makes a field of a number within the range; an open upper end is kMostNumber.
template <class Get>
Field number(std::string key, Get get, Range range, std::string doc) {
  range = bounded(range, kMostNumber);
  return ranged(std::move(key), "a number" + range.text(), std::move(doc), get,
                RangedReader<double>{read_number, range},
                [](const auto& value) { return number_text(value); });
}

/// Makes a field of seconds in (0, kMostSeconds]. If `zero_is_unset`, 0 is not written.
template <class Get>
Field duration(std::string key, Get get, const char* example, std::string doc,
               bool zero_is_unset = false) {
  return ranged(std::move(key), fmt::format("a duration such as {}, at most 3650d", example),
                std::move(doc), get,
                RangedReader<double>{read_duration, above_up_to(0, kMostSeconds)},
                [zero_is_unset](double seconds) {
                  return zero_is_unset && seconds == 0 ? "" : duration_text(seconds);
                });
}

inline std::string flag_text(bool value) {
  return value ? "true" : "false";
}

/// Makes a field of true or false.
template <class Get>
Field flag(std::string key, Get get, std::string doc) {
  Field field = make(std::move(key), "true or false", std::move(doc), get, read_bool, flag_text);
  field.choices = {"true", "false"};
  return field;
}

/// Makes a field of true or false for a std::optional member.
template <class Get>
Field maybe_flag(std::string key, Get get, std::string doc) {
  return make(std::move(key), "true or false", std::move(doc), get, read_bool,
              [](const std::optional<bool>& value) { return value ? flag_text(*value) : ""; });
}

/// An empty text is "not set".
template <class Get>
Field text(std::string key, Get get, std::string doc, std::string accepts = "text",
           decltype(read_text)* read = read_text) {
  return make(std::move(key), std::move(accepts), std::move(doc), get, read,
              [](const std::string& value) { return value.empty() ? "" : yaml_text(value); });
}

/// Returns a text field whose value is a path.
template <class Get>
Field path(std::string key, Get get, std::string doc, std::string accepts,
           decltype(read_text)* read = read_path) {
  return text(std::move(key), get, std::move(doc), std::move(accepts), read);
}

/// Makes a field whose value is one of the names.
template <class Get>
Field choice(std::string key, Get get, std::vector<std::string> choices, std::string doc) {
  Field field = make(
      std::move(key), "one of " + joined(choices), std::move(doc), get,
      [choices](const auto& value, const auto& what) { return read_choice(value, choices, what); },
      [](const std::string& value) { return value; });
  field.choices = std::move(choices);
  return field;
}

/// An enumeration, or an optional of one that is not written where it is empty; `values`: all of it
/// with their names.
template <class Get, class Enum, size_t count>
Field choice(std::string key, Get get, const std::pair<Enum, std::string_view> (&values)[count],
             std::string doc) {
  std::vector<std::string> names;
  for (const auto& [value, name] : values) {
    names.emplace_back(name);
  }
  Field field = make(
      std::move(key), "one of " + joined(names), std::move(doc), get,
      [names, &values](const auto& value, const auto& what) {
        const auto name = read_choice(value, names, what);
        return name ? value_in(values, *name) : std::nullopt;
      },
      [&values](const std::optional<Enum>& value) {
        return std::string(value ? name_in(values, *value) : "");
      });
  field.choices = std::move(names);
  return field;
}

/// Makes a field of a list of texts. An empty list is written only when `show_empty`.
template <class Get>
Field texts(std::string key, Get get, std::string doc, bool show_empty,
            decltype(read_texts)* read = read_texts, std::string accepts = "a list of texts") {
  return make(std::move(key), std::move(accepts), std::move(doc), get, read,
              [show_empty](const std::vector<std::string>& values) -> std::string {
                if (values.empty() && !show_empty) {
                  return "";
                }
                std::vector<std::string> parts;
                for (const std::string& value : values) {
                  parts.push_back(yaml_text(value));
                }
                return fmt::format("[{}]", joined(parts));
              });
}

}  // namespace fp8train::fields
