// The filters of texts (Jinja 3, filters.py), and the methods of Python's str.

#include <fmt/format.h>

#include <algorithm>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/text.h"
#include "data/tokenizers/unicode.h"

namespace fp8train::jinja {
namespace texts {
namespace {

const std::string& self_of(const Call& call) {
  return call.self.as_text()->bytes;
}

template <bool at_start, bool at_end>
Value strip(const Call& call) {
  const Text whole = call.run.written(call.self);
  const Value* characters = call.given(0);
  if (characters != nullptr) call.run.spend(extent_of(*characters).size);
  return call.run.text(
      stripped(whole, at_start, at_end, characters == nullptr ? nullptr : &call.text(0).bytes));
}

template <std::string (*change)(std::string_view)>
Value changed(const Call& call) {
  const Text whole = call.run.written(call.self);
  return call.run.text(whole.changed_to(change(whole.bytes)));
}

Value escape(const Call& call) {
  return call.run.text(call.run.written(call.self).escaped());
}

Value safe(const Call& call) {
  Text text = call.run.written(call.self);
  text.is_markup = true;
  return call.run.text(std::move(text));
}

/// Visits the bytes of the parts between marks, or between white space where `mark` is null, with
/// at most `most` cuts: from the start, or from the end on. An empty mark is in front of each
/// character and at the end.
template <typename Visit>
void for_each_part(std::string_view text, const std::string* mark, int64_t most, bool from_end,
                   const Visit& visit) {
  using tokenizers::spaces_at_start, tokenizers::without_spaces_at_end;
  const auto in_word = [](char32_t c) { return !is_python_space(c); };
  const bool by_words = mark == nullptr;
  size_t begin = by_words && !from_end ? spaces_at_start(text, is_python_space) : 0;
  size_t end = by_words && from_end ? without_spaces_at_end(text, is_python_space) : text.size();
  for (bool is_first = true; most != 0; --most, is_first = false) {
    const std::string_view rest = text.substr(begin, end - begin);
    size_t at = 0, next = 0;  // of the cut
    if (by_words && from_end) {
      next = without_spaces_at_end(rest, in_word);
      at = without_spaces_at_end(rest.substr(0, next), is_python_space);
    } else if (by_words) {
      at = spaces_at_start(rest, in_word);
      next = at + spaces_at_start(rest.substr(at), is_python_space);
    } else if (mark->empty()) {
      if (rest.empty() && !is_first) break;
      at = next = is_first ? 0 : byte_of(rest, 1);
    } else {
      at = from_end ? rest.rfind(*mark) : find_in(rest, *mark, 0);
      if (at == std::string_view::npos) break;
      next = at + mark->size();
    }
    if (by_words && at == next) break;
    if (from_end) {
      visit(begin + next, end);
      end = begin + at;
    } else {
      visit(begin, begin + at);
      begin += next;
    }
  }
  if (begin < end || !by_words) visit(begin, end);
}

/// A search from the end compares byte by byte.
void spend_search_from_end(const Call& call, std::string_view part) {
  constexpr size_t kBytesOfStep = 4096;
  const size_t size = self_of(call).size();
  const size_t steps = size / 64 + size / kBytesOfStep * part.size();
  call.run.spend(static_cast<int64_t>(std::min<size_t>(steps, INT64_MAX)));
}

template <bool from_end>
Value split(const Call& call) {
  const std::string* mark = call.given(0) == nullptr ? nullptr : &call.text(0).bytes;
  if (mark != nullptr && mark->empty()) call.run.fail("split() at an empty text");
  if (mark != nullptr && from_end) spend_search_from_end(call, *mark);
  std::vector<Value> parts;
  for_each_part(self_of(call), mark, call.integer(1, -1), from_end, [&](size_t begin, size_t end) {
    call.run.spend(1);
    parts.push_back(call.run.text(call.self.as_text()->slice(begin, end)));
  });
  if (from_end) std::ranges::reverse(parts);
  return call.run.list(std::move(parts));
}

bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<Value> lines_of(Interpreter& run, const Text& whole, bool with_ends) {
  const std::string_view text = whole.bytes;
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const tokenizers::CodePoint c = tokenizers::whole_code_point_at(text, at);
    const size_t next = at + (text.substr(at).starts_with("\r\n") ? 2 : c.bytes);
    if (ends_line(c.value)) {
      lines.push_back(run.text(whole.slice(begin, with_ends ? next : at)));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(run.text(whole.slice(begin, text.size())));
  return lines;
}

Value split_lines(const Call& call) {
  return call.run.list(lines_of(call.run, *call.self.as_text(), call.flag(0)));
}

Value replace(const Call& call) {
  const Text whole = call.run.written(call.self);
  const Text before = call.run.written(call.at(0)), after = call.run.written(call.at(1));
  Text out;
  bool is_first = true;
  const int64_t most = call.integer(2, -1);
  for_each_part(whole.bytes, &before.bytes, most, false, [&](size_t begin, size_t end) {
    if (!std::exchange(is_first, false)) out.append(after);
    call.run.spend(1, std::ssize(after.bytes));
    out.append(whole.slice(begin, end));
  });
  return call.run.text(std::move(out));
}

/// Each line but the first, and empty ones, further in.
Value indent(const Call& call) {
  const Value* width = call.find(0);
  std::string space(4, ' ');
  if (width != nullptr && width->is_integer()) {
    space.assign(static_cast<size_t>(std::clamp<int64_t>(width->integer(), 0, 1000)), ' ');
  } else if (width != nullptr) {
    space = call.text(0).bytes;
  }
  Text whole = call.run.written(call.self);
  whole.append(Text("\n"));
  Text out;
  bool is_first = true;
  for (const Value& each : lines_of(call.run, whole, false)) {
    const Text& line = *each.as_text();
    const bool moves = is_first ? call.flag(1) : call.flag(2) || !line.bytes.empty();
    if (!std::exchange(is_first, false)) out.append(Text("\n"));
    if (moves) out.append(Text(space));
    call.run.spend(1, static_cast<int64_t>(space.size() + line.bytes.size()));
    out.append(line);
  }
  return call.run.text(std::move(out));
}

template <bool at_end>
bool has(const std::string& text, const std::string& part) {
  return at_end ? text.ends_with(part) : text.starts_with(part);
}

template <bool at_end>
Value has_part(const Call& call) {
  const List* several = call.at(0).as_list();
  if (several == nullptr) return Value(has<at_end>(self_of(call), call.text(0).bytes));
  if (several->kind != List::Kind::tuple) call.run.fail("a method of a text takes a tuple");
  call.run.spend(several->extent.size);
  return Value(std::ranges::any_of(several->items, [&](const Value& part) {
    return has<at_end>(self_of(call), call.run.text_argument(part, call.callee.name).bytes);
  }));
}

template <bool at_end>
Value remove_part(const Call& call) {
  const std::string& part = call.text(0).bytes;
  if (!has<at_end>(self_of(call), part)) return call.self;
  const size_t size = self_of(call).size();
  return call.run.text(at_end ? call.self.as_text()->slice(0, size - part.size())
                              : call.self.as_text()->slice(part.size(), size));
}

template <bool from_end>
Value find(const Call& call) {
  const std::string& text = self_of(call);
  const std::string& part = call.text(0).bytes;
  if (from_end) spend_search_from_end(call, part);
  const size_t at = from_end ? text.rfind(part) : find_in(text, part, 0);
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(length_of(std::string_view(text).substr(0, at)));
}

Value count(const Call& call) {
  int64_t parts = 0;
  for_each_part(self_of(call), &call.text(0).bytes, -1, false, [&](size_t, size_t) { ++parts; });
  return Value(parts - 1);
}

Value join(const Call& call) {
  const std::shared_ptr<const List> parts = call.run.elements(call.at(0));
  for (const Value& part : parts->items) call.run.text_argument(part, "join()");
  return call.run.filter("join", call.run.list(parts->items), {{call.self}, {}});
}

Value is_digits(const Call& call) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return Value(!self_of(call).empty() && std::ranges::all_of(self_of(call), is_digit));
}

Value is_spaces(const Call& call) {
  const size_t spaces = tokenizers::spaces_at_start(self_of(call), is_python_space);
  return Value(spaces > 0 && spaces == self_of(call).size());
}

constexpr Callable kFilters[] = {
    {"trim", strip<true, true>, {"chars"}},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"title", changed<titled_words>},
    {"capitalize", changed<capitalized>},
    {"replace", replace, {"old", "new", "count"}},
    {"indent", indent, {"width", "first", "blank"}},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
};

constexpr Callable kMethods[] = {
    {"strip", strip<true, true>, {"chars"}},
    {"lstrip", strip<true, false>, {"chars"}},
    {"rstrip", strip<false, true>, {"chars"}},
    {"split", split<false>, {"sep", "maxsplit"}},
    {"rsplit", split<true>, {"sep", "maxsplit"}},
    {"splitlines", split_lines, {"keepends"}},
    {"startswith", has_part<false>, {"prefix"}},
    {"endswith", has_part<true>, {"suffix"}},
    {"removeprefix", remove_part<false>, {"prefix"}},
    {"removesuffix", remove_part<true>, {"suffix"}},
    {"replace", replace, {"old", "new", "count"}},
    {"find", find<false>, {"sub"}},
    {"rfind", find<true>, {"sub"}},
    {"count", count, {"sub"}},
    {"join", join, {"iterable"}},
    {"upper", changed<upper>},
    {"lower", changed<lower>},
    {"title", changed<title>},
    {"capitalize", changed<capitalized>},
    {"isdigit", is_digits},
    {"isspace", is_spaces},
};

}  // namespace
}  // namespace texts

constinit const Callables kTextFilters = texts::kFilters;
constinit const Callables kTextMethods = texts::kMethods;

}  // namespace fp8train::jinja
