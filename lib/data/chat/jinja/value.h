#pragma once
// The values of a template, which behave as Python's do. Lists and dictionaries do not change once
// made, as in a sandbox of Jinja; a namespace does.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/chat/jinja/text.h"

namespace fp8train::jinja {

class Value;
struct Callable;
struct Scope;
struct Statement;

/// How large a value is, with what it holds: a part that is held twice counts twice.
struct Extent {
  int32_t levels = 0;    ///< of lists and dictionaries
  int64_t size = 1;      ///< values, and texts by 32 bytes
  int32_t message = -1;  ///< the first that it has text of; -1: of none

  void hold(const Extent& part);
};

/// The value of a name that has none. Written as nothing, false, without elements.
struct Undefined {
  std::string reason;  ///< "'x' is undefined", for messages
};

struct List {
  enum class Kind : uint8_t {
    list,
    tuple,
    range,
    view,       ///< keys(), values() and items(): without an order
    generator,  ///< what map() and the like give: true even where it is empty, without a length;
                ///< its elements are read once
  };
  std::vector<Value> items;
  Kind kind = Kind::list;
  Extent extent;
  mutable bool is_used = false;  ///< a generator: it has been read

  bool is_ordered() const { return kind != Kind::view && kind != Kind::generator; }
  bool has_sum() const { return kind == Kind::list || kind == Kind::tuple; }
};

/// In the order in which keys came.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent;

  const Value* find(const Value& key) const;
  void set(Value key, Value value);
};

/// The value that namespace() makes. Assigned to by {% set ns.name = value %}.
struct Namespace {
  Dict attributes;
};

/// The `loop` of a for statement at one of its elements.
struct Loop {
  std::shared_ptr<const List> items;
  int64_t index = 0;                 ///< from 0
  std::shared_ptr<Value> last_seen;  ///< by loop.changed()
};

/// A value that can be called: a function, or a method with its object, or a macro.
struct Function {
  const Callable* callable = nullptr;  ///< null: a macro
  std::shared_ptr<const Value> self = nullptr;
  const Statement* macro = nullptr;
  std::weak_ptr<Scope> scope = {};  ///< where the macro was defined
};

/// A value. Copies share what they hold.
class Value {
 public:
  using TextPointer = std::shared_ptr<const Text>;
  using ListPointer = std::shared_ptr<const List>;
  using DictPointer = std::shared_ptr<const Dict>;
  struct None {};
  using Content = std::variant<Undefined, None, bool, int64_t, double, TextPointer, ListPointer,
                               DictPointer, std::shared_ptr<Namespace>, std::shared_ptr<Loop>,
                               std::shared_ptr<const Function>>;

  Value() = default;  ///< undefined, without a reason
  template <typename T>
  requires std::is_constructible_v<Content, T>
  explicit Value(T content) : content_(std::move(content)) {}
  explicit Value(Text text) : content_(std::make_shared<const Text>(std::move(text))) {}
  explicit Value(List list) : content_(std::make_shared<const List>(std::move(list))) {}
  explicit Value(Dict dict) : content_(std::make_shared<const Dict>(std::move(dict))) {}
  explicit Value(Function function)
      : content_(std::make_shared<const Function>(std::move(function))) {}
  static Value text(std::string bytes) { return Value(Text(std::move(bytes))); }
  static Value none() { return Value(None()); }

  /// The content where it is of this type, else null.
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&content_);
  }
  const Text* as_text() const { return pointed<TextPointer>(); }
  const List* as_list() const { return pointed<ListPointer>(); }
  const Dict* as_dict() const { return pointed<DictPointer>(); }

  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  bool is_integer() const { return get<int64_t>() != nullptr || get<bool>() != nullptr; }
  bool is_number() const { return is_integer() || get<double>() != nullptr; }
  int64_t integer() const;  ///< of an integer or a bool
  double real() const;      ///< of a number
  bool is_true() const;     ///< as Python's bool()
  /// "str", "list", "int", ...: as Python names types.
  std::string_view type_name() const;

 private:
  template <typename Pointer>
  auto pointed() const -> decltype(std::declval<Pointer>().get()) {
    const Pointer* pointer = get<Pointer>();
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Content content_;
};

Extent extent_of(const Value& value);

/// As Python's ==.
bool equal(const Value& a, const Value& b);
/// As Python's <, of numbers, texts and lists. `comparable` becomes false for others.
bool less(const Value& a, const Value& b, bool& comparable);

/// As Python's str(); an undefined value is "".
Text text_of(const Value& value);

/// How tojson() writes.
struct JsonStyle {
  int64_t indent = -1;  ///< below 0: in one line
  bool sorts_keys = false;
  bool only_ascii = false;
  std::string item_separator = ", ", key_separator = ": ";
};
/// As Python's json.dumps(). `fits` becomes false where JSON has no such value.
std::string json_of(const Value& value, const JsonStyle& style, bool& fits);

}  // namespace fp8train::jinja
