#pragma once
// A part of a tokenizer.json on its way into the program. Unknown content is refused with the file
// and the key, and nothing is skipped: a field that the reader of a part does not name must be
// null. Lists are at most 16 deep.

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace fp8train::tokenizers {

/// A value of a tokenizer.json and its location in the file, for messages. Refers to the value.
/// Functions that read a field throw DataError if it is missing or of another type.
class JsonPart {
 public:
  /// `where` is the file and the path of keys, for messages. Refers to `value`.
  JsonPart(const nlohmann::json& value, std::string where);

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  bool has(std::string_view key) const;  ///< there and not null
  /// Returns a field of an object.
  JsonPart at(std::string_view key) const;
  /// Returns an entry of a list. Throws DataError for an entry that is more than 16 lists deep.
  JsonPart at(size_t index) const;
  size_t size() const { return value_->size(); }

  /// Returns a field that is a string.
  std::string text(std::string_view key) const;
  /// Returns a field that is a string, or `otherwise` if it is missing or null. flag_or() does the
  /// same for a boolean.
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  bool flag_or(std::string_view key, bool otherwise) const;
  /// Returns a field that is an integer.
  int64_t number(std::string_view key) const;
  /// Returns the results of `read` for the entries of a list.
  template <typename Read>
  auto list(std::string_view key, const Read& read) const {
    const JsonPart entries = at(key);
    std::vector<decltype(read(entries))> made;
    for (size_t i = 0; i < entries.size(); ++i) made.push_back(read(entries.at(i)));
    return made;
  }
  /// Returns the field "type".
  std::string type() const { return text("type"); }

  /// Throws DataError if a field that is not null is neither "type" nor one of `known`.
  void only(std::initializer_list<std::string_view> known) const;

  /// Throws DataError: "WHERE: WHAT".
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  JsonPart(const nlohmann::json& value, std::string where, int depth);

  const nlohmann::json* value_;
  std::string where_;
  int depth_ = 0;  ///< lists that it is in
};

/// Throws DataError unless `id` may be the id of one of `tokens` tokens: lists by id leave out at
/// most 2^20 ids, so that one damaged id does not ask for all memory.
void require_dense(const JsonPart& part, int64_t id, size_t tokens);

/// Throws DataError, which says that the type of `part` is not supported, and which ones of `kind`
/// are.
[[noreturn]] void refuse_type(const JsonPart& part, std::string_view kind, std::string_view known);

/// A type of parts, and the function that reads one.
template <typename Function>
struct PartKind {
  std::string_view type;
  Function* read;
};

/// Returns the entry of `kinds` for the type of `part`. If there is none, throws DataError that
/// calls such parts `what` ("decoders") and names all types.
template <typename Function, size_t count>
const PartKind<Function>& kind_of(const JsonPart& part, std::string_view what,
                                  const PartKind<Function> (&kinds)[count]) {
  const std::string type = part.type();
  for (const PartKind<Function>& kind : kinds) {
    if (kind.type == type) return kind;
  }
  refuse_type(part, what, joined(kinds, &PartKind<Function>::type));
}

}  // namespace fp8train::tokenizers
