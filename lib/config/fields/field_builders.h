#pragma once
// Makes fields from members of Settings: `field("eval.interval", in(&Settings::eval,
// &EvalSettings::interval), at_least(0), "...")`. The type of a member decides how its value is
// read from YAML and written.

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
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

/// A function from members to in(outer..., members...).
template <class... Outer>
constexpr auto under(Outer... outer) {
  return [outer...](auto... members) { return in(outer..., members...); };
}

/// Returns the fields of all parts, in their order.
inline std::vector<Field> concat(std::initializer_list<std::vector<Field>> parts) {
  std::vector<Field> all;
  for (const std::vector<Field>& part : parts) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

/// The values that a member takes, beyond what its type says.
struct Rule {
  Range range = {};            ///< of numbers, also of those in a list
  std::string accepts = {};    ///< in words; empty: by the type and the range
  size_t count = 0;            ///< elements of a list; 0: any number
  bool shows_empty = false;    ///< an empty list is written
  bool is_duration = false;    ///< seconds, written as 3h50m
  bool is_unset_at_0 = false;  ///< 0 stands for "not set" and is not written
  bool null_is_0 = false;
  int shift = 0;  ///< bits by which the member is larger than what is written: 20 for MiB
};

/// A whole number from 1 to `max`; the member is 0 where it is not set.
inline Rule count_up_to(double max, bool null_is_0 = false) {
  return {.range = between(1, max), .is_unset_at_0 = true, .null_is_0 = null_is_0};
}
/// Seconds in (0, kMaxSeconds].
inline Rule seconds(const char* example, bool is_unset_at_0 = false) {
  return {.range = above_up_to(0, kMaxSeconds),
          .accepts = fmt::format("a duration such as {}, at most 3650d", example),
          .is_duration = true,
          .is_unset_at_0 = is_unset_at_0};
}

// The type of a value: that in an optional, else the type itself.
template <class T>
T value_type(const T&);
template <class T>
T value_type(const std::optional<T>&);

template <class T>
inline constexpr bool is_number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;
template <class T>
inline constexpr bool is_texts = std::is_same_v<T, std::vector<std::string>>;

/// Returns the values of the type within the rule, in words.
template <class T>
std::string accepted(const Rule& rule) {
  return !rule.accepts.empty()     ? rule.accepts
         : std::is_same_v<T, bool> ? "true or false"
         : is_texts<T>             ? "a list of texts"
         : !is_number<T>           ? "text"
         : std::is_integral_v<T>   ? "a whole number" + rule.range.text()
                                   : "a number" + rule.range.text();
}

/// Returns the elements of a list of exactly `count` (0: any number), each read by `read`.
template <class T, class Read>
std::optional<std::vector<T>> read_list(const FieldValue& value, size_t count,
                                        const std::string& what, const Read& read) {
  const YamlNode& node = value.node();
  const bool is_list = node.kind == YamlNode::Kind::sequence;
  if (!is_list || (count != 0 && node.items.size() != count)) {
    const auto length = static_cast<int64_t>(node.items.size());
    value.expected(what, is_list ? "it has " + counted(length, "element") : "");
    return std::nullopt;
  }
  std::vector<T> elements;
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (auto element = read(value.child(node.items[i], fmt::format("{}[{}]", value.key(), i)))) {
      elements.push_back(*std::move(element));
    }
  }
  return elements.size() == node.items.size() ? std::optional(elements) : std::nullopt;
}

/// Returns the value of a node: a number, true or false, text, or a list of these, of which a text
/// alone is one. Complains and returns nothing if it is something else.
template <class T>
std::optional<T> from_yaml(const FieldValue& value, const Rule& rule = {}) {
  const std::string what = accepted<T>(rule);
  const YamlNode& node = value.node();
  if constexpr (std::is_same_v<T, bool>) {
    return read_bool(value, what);
  } else if constexpr (is_number<T>) {
    if (rule.null_is_0 && node.kind == YamlNode::Kind::null && !node.reported) {
      return T(0);
    }
    if constexpr (std::is_integral_v<T>) {
      const auto number = read_integer(value, rule.range, what);
      return number ? std::optional(static_cast<T>(*number << rule.shift)) : std::nullopt;
    } else {
      const auto number = (rule.is_duration ? read_duration : read_number)(value, rule.range, what);
      return number ? std::optional(static_cast<T>(*number)) : std::nullopt;
    }
  } else if constexpr (std::is_same_v<T, std::string>) {
    return read_text(value, what);
  } else {
    using Element = typename T::value_type;
    constexpr bool kTexts = std::is_same_v<Element, std::string>;
    if constexpr (kTexts) {
      if (node.kind == YamlNode::Kind::scalar) {
        return T{node.text};
      }
    }
    const auto elements =
        read_list<Element>(value, rule.count, what, [&](const FieldValue& element) {
          if constexpr (kTexts) {
            return element.node().kind == YamlNode::Kind::scalar
                       ? std::optional(element.node().text)
                       : read_text(element, "text");
          } else {
            return from_yaml<Element>(element, {.range = rule.range});
          }
        });
    if constexpr (std::is_same_v<T, std::vector<Element>>) {
      return elements;
    } else if (elements) {  // an array of `count` elements
      T array = {};
      std::copy_n(elements->begin(), array.size(), array.begin());
      return array;
    }
    return std::nullopt;
  }
}

/// Returns the value in one line of YAML; empty where it is not set.
template <class T>
std::string to_yaml(const T& value, const Rule& rule = {}) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (is_number<T>) {
    const bool is_unset = value == 0 && rule.is_unset_at_0;
    if constexpr (std::is_integral_v<T>) {
      return is_unset ? "" : std::to_string(value >> rule.shift);
    } else {
      return is_unset ? "" : rule.is_duration ? duration_text(value) : number_text(value);
    }
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.empty() ? "" : yaml_text(value);
  } else {
    std::string text;
    for (const typename T::value_type& element : value) {
      text += text.empty() ? "[" : ", ";
      if constexpr (std::is_same_v<typename T::value_type, std::string>) {
        text += yaml_text(element);
      } else {
        text += to_yaml(element);
      }
    }
    return !text.empty() ? text + "]" : rule.shows_empty ? "[]" : "";
  }
}
template <class T>
std::string to_yaml(const std::optional<T>& value, const Rule& rule = {}) {
  return value ? to_yaml(*value, rule) : "";
}

/// A key of a map whose value becomes `target`.
template <class T>
KeyReader key_for(std::string name, T& target, Rule rule = {}) {
  return {std::move(name), [&target, rule = std::move(rule)](const FieldValue& value) {
            return assign(target, from_yaml<T>(value, rule));
          }};
}

/// A field whose reader yields an optional value that is then assigned. `write` takes the member.
template <class Get, class Read, class Write>
Field make(std::string key, std::string accepts, std::string doc, Get get, Read read, Write write) {
  Field field;
  field.key = std::move(key);
  field.accepts = accepts;
  field.doc = std::move(doc);
  field.read = [get, read, accepts](Settings& settings, const FieldValue& value) {
    assign(get(settings), read(value, accepts));
  };
  field.write = [get, write](const Settings& settings) { return write(get(settings)); };
  return field;
}

/// The same, written as its type is.
template <class Get, class Read>
Field make(std::string key, std::string accepts, std::string doc, Get get, Read read) {
  return make(std::move(key), std::move(accepts), std::move(doc), get, read,
              [](const auto& value) { return to_yaml(value); });
}

/// Makes a field of a member, which may be an optional: its type and the rule decide what is
/// accepted. Open upper ends are kMaxWhole and kMaxNumber.
template <class Get>
Field field(std::string key, Get get, Rule rule, std::string doc) {
  using Member = std::remove_cvref_t<std::invoke_result_t<Get, Settings&>>;
  using T = decltype(value_type(std::declval<Member>()));
  if constexpr (is_number<T>) {
    rule.range = bounded(rule.range, std::is_integral_v<T> ? kMaxWhole : kMaxNumber);
  }
  Field made = make(
      std::move(key), accepted<T>(rule), std::move(doc), get,
      [rule](const FieldValue& value, const std::string&) { return from_yaml<T>(value, rule); },
      [rule](const Member& value) { return to_yaml(value, rule); });
  if constexpr (is_number<T>) {
    made.number = NumberRange{rule.range, std::is_integral_v<T>};
  } else if constexpr (std::is_same_v<T, bool>) {
    made.choices = {"true", "false"};
  }
  return made;
}
template <class Get>
Field field(std::string key, Get get, const Range& range, std::string doc) {
  return field(std::move(key), get, Rule{.range = range}, std::move(doc));
}
template <class Get>
Field field(std::string key, Get get, std::string doc) {
  return field(std::move(key), get, Rule(), std::move(doc));
}

/// Makes a field of text that `read` takes; an empty text is "not set".
template <class Get>
Field text(std::string key, Get get, std::string doc, std::string accepts = "text",
           decltype(read_text)* read = read_text) {
  return make(std::move(key), std::move(accepts), std::move(doc), get, read);
}

/// Makes a text field whose value is a path.
template <class Get>
Field path(std::string key, Get get, std::string doc, std::string accepts,
           decltype(read_text)* read = read_path) {
  return text(std::move(key), get, std::move(doc), std::move(accepts), read);
}

/// The field of a whole number that also takes a word, which stands for `number`.
template <typename Member>
Field or_word(Field made, Member member, const std::string& word, int64_t number) {
  const Rule rule = {.range = made.number->range, .accepts = made.accepts + ", or " + word};
  made.accepts = rule.accepts;
  made.read = [=](Settings& settings, const FieldValue& value) {
    const bool is_word = value.node().kind == YamlNode::Kind::scalar && value.node().text == word;
    assign(member(settings), is_word ? std::optional(number) : from_yaml<int64_t>(value, rule));
  };
  made.write = [=](const Settings& settings) {
    return member(settings) == number ? word : to_yaml(member(settings));
  };
  return made;
}

/// Makes a field whose value is one of the names: set(settings, name) stores it, and
/// name_of(settings) returns it.
template <class Set, class NameOf>
Field named(std::string key, std::vector<std::string> names, std::string doc, Set set,
            NameOf name_of) {
  Field field;
  field.key = std::move(key);
  field.accepts = "one of " + joined(names);
  field.doc = std::move(doc);
  field.read = [names, set, what = field.accepts](Settings& settings, const FieldValue& value) {
    if (const auto name = read_choice(value, names, what)) {
      set(settings, *name);
    }
  };
  field.write = [name_of](const Settings& settings) { return std::string(name_of(settings)); };
  field.choices = std::move(names);
  return field;
}

/// Makes a field of a text that is one of the names.
template <class Get>
Field choice(std::string key, Get get, std::vector<std::string> names, std::string doc) {
  return named(
      std::move(key), std::move(names), std::move(doc),
      [get](Settings& settings, const std::string& name) { get(settings) = name; }, get);
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
  return named(
      std::move(key), std::move(names), std::move(doc),
      [get, &values](Settings& settings, const std::string& name) {
        get(settings) = *value_in(values, name);
      },
      [get, &values](const Settings& settings) {
        const std::optional<Enum> value = get(settings);
        return value ? name_in(values, *value) : "";
      });
}

}  // namespace fp8train::fields
