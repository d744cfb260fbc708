#pragma once
// The errors of a configuration, collected so that a user sees all of them at once.

#include <cstddef>
#include <string>
#include <vector>

namespace fp8train {

/// The position at which a value was written. Line 0: it is only known to be in the source.
struct SourceMark {
  size_t source = 0;  ///< index into Problems' sources
  int line = 0;
  int column = 0;
};

class Problems {
 public:
  /// Registers a file ("run.yaml", `has_lines`) or an argument ("--set a.b=v") and returns its
  /// index.
  size_t add_source(std::string name, bool has_lines);

  /// `key` is the dotted key, empty when the whole source is meant.
  void add(SourceMark mark, const std::string& key, const std::string& text);

  bool empty() const { return items_.empty(); }

  size_t count() const { return items_.size(); }

  /// One problem, for callers that show it in their own way.
  struct Problem {
    SourceMark mark;
    std::string key;
    std::string text;
  };
  const std::vector<Problem>& all() const { return items_; }

  /// Whether there are more than raise() shows (50): good advice for further ones is wasted.
  bool full() const;

  bool is_file(size_t source) const { return sources_[source].has_lines; }

  /// Returns "run.yaml:3:5" or "--set a.b=v".
  std::string where(SourceMark mark) const;

  /// Throws ConfigError with one line per problem in order of their marks, unless there is none.
  void raise() const;

 private:
  struct Source {
    std::string name;
    bool has_lines;
  };
  std::vector<Source> sources_;
  std::vector<Problem> items_;
};

/// Returns "key: text"; the text alone where it begins with the key, or the key is empty.
std::string with_key(const std::string& key, const std::string& text);

/// Returns `text` in double quotes, shortened to 80 bytes and with control characters escaped, for
/// messages.
std::string quoted_for_message(const std::string& text);

}  // namespace fp8train
