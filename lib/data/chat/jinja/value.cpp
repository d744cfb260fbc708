#include "data/chat/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/tokenizers/unicode.h"

namespace fp8train::jinja {
namespace {

template <typename Entries>
auto entry_of(Entries& entries, const Value& key) {
  return std::ranges::find_if(entries, [&](const auto& entry) { return equal(entry.first, key); });
}

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.entries.size() == b.entries.size() &&
         std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
           const Value* other = b.find(entry.first);
           return other != nullptr && equal(entry.second, *other);
         });
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string repr_of_text(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const tokenizers::CodePoint c = tokenizers::whole_code_point_at(text, at);
    const bool is_plain =
        c.value == ' ' || !(tokenizers::is_white_space(c.value) || tokenizers::is_control(c.value));
    const auto code = static_cast<uint32_t>(c.value);
    if (text[at] == quote || text[at] == '\\') {
      out += '\\';
      out += text[at];
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (is_plain) {
      out += text.substr(at, c.bytes);
    } else {
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
    at += c.bytes;
  }
  return out + quote;
}

/// Writes values as Python's repr() does, or as json.dumps() does.
struct Writer {
  const JsonStyle& style;
  bool in_json = false;
  std::string out = {};
  int64_t depth = 0;
  bool fits = true;

  void write(const Value& value) {
    const List* list = value.as_list();
    if (const Text* text = value.as_text()) {
      out += in_json
                 ? nlohmann::json(text->bytes)
                       .dump(-1, ' ', style.only_ascii, nlohmann::json::error_handler_t::replace)
                 : repr_of_text(text->bytes);
    } else if (list != nullptr && (list->has_sum() || !in_json)) {
      write_list(*list);
    } else if (const Dict* dict = value.as_dict()) {
      write_dict(*dict);
    } else if (const bool* flag = value.get<bool>()) {
      out += in_json ? (*flag ? "true" : "false") : (*flag ? "True" : "False");
    } else if (value.is_none()) {
      out += in_json ? "null" : "None";
    } else if (value.is_number()) {
      out += value.is_integer() ? fmt::format("{}", value.integer()) : number_text(value.real());
    } else {
      fits = false;
      out += value.is_undefined() ? "Undefined" : fmt::format("<{}>", value.type_name());
    }
  }

  void line() {
    if (style.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style.indent * depth), ' ');
  }

  template <typename WriteItem>
  void write_items(std::string_view brackets, size_t count, const WriteItem& write_item) {
    out += brackets[0];
    ++depth;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style.item_separator;
      line();
      write_item(i);
    }
    --depth;
    if (count > 0) line();
    out += brackets[1];
  }

  void write_list(const List& list) {
    const bool is_tuple = list.kind == List::Kind::tuple && !in_json;
    write_items(is_tuple ? "()" : "[]", list.items.size(), [&](size_t i) {
      write(list.items[i]);
      if (is_tuple && list.items.size() == 1) out += ',';
    });
  }

  void write_dict(const Dict& dict) {
    std::vector<size_t> order(dict.entries.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (style.sorts_keys) {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return less(dict.entries[a].first, dict.entries[b].first, fits);
      });
    }
    write_items("{}", order.size(), [&](size_t i) {
      const auto& [key, value] = dict.entries[order[i]];
      const std::string_view quote = in_json && key.as_text() == nullptr ? "\"" : "";
      out += quote;
      write(key);
      out += quote;
      out += style.key_separator;
      write(value);
    });
  }
};

}  // namespace

const Value* Dict::find(const Value& key) const {
  const auto found = entry_of(entries, key);
  return found == entries.end() ? nullptr : &found->second;
}

void Dict::set(Value key, Value value) {
  const auto found = entry_of(entries, key);
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
  if (message < 0) message = part.message;
}

Extent extent_of(const Value& value) {
  if (const Text* text = value.as_text()) {
    const int32_t message = text->spans.empty() ? -1 : text->spans.front().message;
    return {0, 1 + static_cast<int64_t>(text->bytes.size() / 32), message};
  }
  if (const List* list = value.as_list()) return list->extent;
  if (const Dict* dict = value.as_dict()) return dict->extent;
  Extent extent;
  if (const auto* function = value.get<std::shared_ptr<const Function>>()) {
    if ((*function)->self) extent.hold(extent_of(*(*function)->self));
  } else if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
    extent.hold((*loop)->items->extent);
  }
  extent.message = -1;  // what is written of these says nothing of a message
  return extent;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.real() == b.real();
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    return a.as_text()->bytes == b.as_text()->bytes;
  }
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    return a.as_list()->kind == b.as_list()->kind &&
           std::ranges::equal(a.as_list()->items, b.as_list()->items, equal);
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

Text text_of(const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  if (value.is_undefined()) return {};
  const JsonStyle style;
  Writer writer{style};
  writer.write(value);
  return {std::move(writer.out), extent_of(value).message};
}

std::string json_of(const Value& value, const JsonStyle& style, bool& fits) {
  Writer writer{style, true};
  writer.write(value);
  fits = writer.fits;
  return std::move(writer.out);
}

}  // namespace fp8train::jinja
