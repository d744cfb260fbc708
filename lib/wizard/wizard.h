#pragma once
// The dialogue of `fp8train config`: asks the questions of the field table, with plain lines on any
// pair of streams. It knows no terminal, no file and no device; hooks provide them.

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/screen.h"
#include "config/fields/field_table.h"
#include "config/load.h"

namespace fp8train {

/// The input ended before the dialogue did. Nothing is wrong with the program.
class InputEnded : public std::runtime_error {
 public:
  InputEnded() : std::runtime_error("end of input") {}
};

struct WizardHooks {
  /// Returns a line about the memory that the settings so far need; empty: not known yet. Null:
  /// never.
  std::function<std::string(const Settings&)> memory = nullptr;
  /// Returns the value in YAML that this machine offers for a key instead of the table's; empty:
  /// none. Null: never.
  std::function<std::string(const std::string& key, const Settings&)> offer = nullptr;
  /// Returns lines to print in front of a question: what the answers so far mean for it; empty:
  /// nothing. Null: never.
  std::function<std::string(const std::string& key, const Settings&)> remark = nullptr;
  /// Returns the answers with which a run would fit into memory that does not, or none if no
  /// change of answers is enough; nothing: it fits, or that is not known. Null: never asked.
  std::function<std::optional<std::vector<Answer>>(const Settings&)> fitting = nullptr;
  /// Returns why an answer is doubtful; it is asked again, and the same answer stays. Null: never.
  std::function<std::string(const std::string& key, const Settings&)> doubt = nullptr;
  /// Returns why no run can have these settings, though complete; empty: one can. Null: never
  /// asked.
  std::function<std::string(const Settings&)> obstacle = nullptr;
  /// Returns why no file of this name can be written; empty: it can. Null: all can.
  std::function<std::string(const std::string&)> unwritable = nullptr;
  /// Whether no further line is to be read. Null: never.
  std::function<bool()> stopped = nullptr;
  /// Whether there is a file of this name. Null: there is none.
  std::function<bool(const std::string&)> exists = nullptr;
};

struct WizardStyle {
  bool echo = false;  ///< print what was read: it does not come from a terminal
  bool bold = false;  ///< prints headings in bold, by escape codes
  size_t columns = kColumns;
};

struct WizardResult {
  Settings settings;
  std::vector<std::string> asked;  ///< keys that have an answer, be it the default
  std::string output;              ///< path of run.yaml
};

/// One dialogue, from the first question to the names of the files: asks everything, shows it for
/// review, and asks for the name of a file that is there already. Throws InputEnded.
WizardResult ask_settings(std::istream& in, std::ostream& out, const WizardHooks& hooks,
                          WizardStyle style, const std::string& output);

/// Asks nothing: what `answers` leave out is as if Enter had been pressed. Throws ConfigError that
/// names `source` where an answer is missing or contradicts the others.
WizardResult take_answers(const std::vector<Answer>& answers, const WizardHooks& hooks,
                          const std::string& source, const std::string& output);

}  // namespace fp8train
