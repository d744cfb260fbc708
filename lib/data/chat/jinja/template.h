#pragma once
// A chat template in the language of Jinja, as transformers renders it: Jinja 3 in an immutable
// sandbox with trim_blocks and lstrip_blocks (pallets/jinja; transformers,
// utils/chat_template_utils.py). What chat templates do not use is refused: statements when a
// template is read, the others where they are reached.
//
//   statements  include, import, extends, block, autoescape, do, trans, a recursive for, nested
//               targets, {% generation %} within a macro or a set
//   values      integers of other bases or above 64 bits, % of texts, varargs and kwargs, joiner,
//               cycler and lipsum, which are not defined
//   filters, tests, methods and arguments that are not in the tables of filters.cpp, texts.cpp,
//               lists.cpp and operators.cpp (tests)
//
// Other results than Jinja's: letters whose other case has several code points, or depends on their
// neighbors; arguments of replace that are markup; what is left of a generator that was read in
// part. strftime_now() gives kToday, since today's date would give other ids tomorrow.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/chat/jinja/value.h"

namespace fp8train::jinja {

struct Tree;

/// The date of today to templates: the one that Llama 3.2's has where it is given no other.
inline constexpr std::string_view kToday = "26 Jul 2024";

/// The steps and bytes that a template may use, so that none runs for ever or takes all memory.
struct Budget {
  static constexpr int64_t kMaxSteps = 20'000'000;
  static constexpr int64_t kMaxBytes = int64_t{256} << 20;

  int64_t steps = kMaxSteps;  ///< left; a second or two in all
  int64_t bytes = kMaxBytes;  ///< left of those that values may have, also those already gone
};

/// A template used up its budget.
class OverBudget : public DataError {
  using DataError::DataError;
};

/// A rendered template.
struct Rendered {
  Text text;
  /// The bytes [begin, end) within {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generations;
};

/// The variables of a template by name.
using Variables = std::vector<std::pair<std::string, Value>>;

/// A template. Immutable, so that it may be used from several threads.
class Template {
 public:
  /// Reads a template of at most 1 MiB. Throws ConfigError "WHERE:LINE: ...".
  Template(std::string_view source, std::string where);

  /// Throws DataError: what raise_exception() says, or "WHERE:LINE: ..." where something is not
  /// defined, not supported, nested more than 400 times, or more than the budget. Takes from
  /// `budget` what was used.
  Rendered render(const Variables& variables, Budget& budget) const;

  /// Whether a name occurs in its expressions and statements.
  bool uses(std::string_view name) const;

 private:
  std::string where_;
  std::shared_ptr<const Tree> tree_;
};

}  // namespace fp8train::jinja
