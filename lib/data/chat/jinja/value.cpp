#include "data/chat/jinja/value.h"

#include <algorithm>
#include <cmath>

namespace fp8train::jinja {
namespace {

bool equal_lists(const List& a, const List& b) {
  return a.kind == b.kind &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.entries.size() == b.entries.size() &&
         std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
           const Value* other = b.find(entry.first);
           return other != nullptr && equal(entry.second, *other);
         });
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  return a.real() == b.real();
}

}  // namespace

const Value* Dict::find(const Value& key) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return equal(entry.first, key); });
  return found == entries.end() ? nullptr : &found->second;
}

const Value* Dict::find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
    const Text* text = entry.first.as_text();
    return text != nullptr && text->bytes == key;
  });
  return found == entries.end() ? nullptr : &found->second;
}

void Dict::set(Value key, Value value) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return equal(entry.first, key); });
  if (found == entries.end()) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

int64_t Value::integer() const {
  if (const bool* flag = get<bool>()) return *flag ? 1 : 0;
  return *get<int64_t>();
}

double Value::real() const {
  if (const double* number = get<double>()) return *number;
  return static_cast<double>(integer());
}

bool Value::is_true() const {
  if (is_number()) return real() != 0;
  if (const Text* text = as_text()) return !text->bytes.empty();
  if (const List* list = as_list()) {
    return list->kind == List::Kind::generator || !list->items.empty();
  }
  if (const Dict* dict = as_dict()) return !dict->entries.empty();
  return !is_undefined() && !is_none();
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",    "bool",    "int",
                                         "float",     "str",         "list",    "dict",
                                         "Namespace", "LoopContext", "function"};
  if (const List* list = as_list(); list != nullptr && list->kind != List::Kind::list) {
    constexpr std::string_view kKinds[] = {"list", "tuple", "range", "view", "generator"};
    return kKinds[static_cast<size_t>(list->kind)];
  }
  return kNames[content_.index()];
}

void Extent::hold(const Extent& part) {
  levels = std::max(levels, part.levels + 1);
  if (__builtin_add_overflow(size, part.size, &size)) size = INT64_MAX;
}

Extent extent_of(const Value& value) {
  if (const Text* text = value.as_text()) {
    return {0, 1 + static_cast<int64_t>(text->bytes.size() / 32)};
  }
  if (const List* list = value.as_list()) return list->extent;
  if (const Dict* dict = value.as_dict()) return dict->extent;
  Extent extent;
  if (const auto* function = value.get<std::shared_ptr<const Function>>()) {
    if ((*function)->self) extent.hold(extent_of(*(*function)->self));
  } else if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
    extent.hold((*loop)->items->extent);
  }
  return extent;
}

int32_t message_of(const Value& value) {
  if (const Text* text = value.as_text()) {
    return text->spans.empty() ? -1 : text->spans.front().message;
  }
  if (const List* list = value.as_list()) {
    for (const Value& item : list->items) {
      if (const int32_t message = message_of(item); message >= 0) return message;
    }
  }
  if (const Dict* dict = value.as_dict()) {
    for (const auto& [key, entry] : dict->entries) {
      if (const int32_t message = message_of(entry); message >= 0) return message;
    }
  }
  return -1;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    return a.as_text()->bytes == b.as_text()->bytes;
  }
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    return equal_lists(*a.as_list(), *b.as_list());
  }
  if (a.as_dict() != nullptr && b.as_dict() != nullptr) {
    return equal_dicts(*a.as_dict(), *b.as_dict());
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b, bool& comparable) {
  if (a.is_integer() && b.is_integer()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.real() < b.real();
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    return a.as_text()->bytes < b.as_text()->bytes;  // UTF-8 sorts as code points do
  }
  const List *left = a.as_list(), *right = b.as_list();
  if (left == nullptr || right == nullptr || left->kind != right->kind) {
    comparable = false;
    return false;
  }
  const auto [x, y] = std::mismatch(left->items.begin(), left->items.end(), right->items.begin(),
                                    right->items.end(), equal);
  if (x == left->items.end() || y == right->items.end()) {
    return x == left->items.end() && y != right->items.end();
  }
  return less(*x, *y, comparable);
}

}  // namespace fp8train::jinja
