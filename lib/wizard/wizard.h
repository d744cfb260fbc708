#pragma once
// The dialogue of `fp8train config`: asks the questions of the field table, with plain lines on any
// pair of streams. It knows no terminal, no file and no device; hooks provide them.

#include <cstddef>
#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
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

/// One dialogue, from the first question to the written files.
class Wizard {
 public:
  /// `answers` has the questions that are answered already. Streams and hooks outlive the wizard.
  Wizard(std::istream& in, std::ostream& out, WizardHooks hooks, WizardStyle style = {});

  /// Asks everything, shows it for review, and asks for the name of a file that is there already.
  /// Throws InputEnded.
  WizardResult talk(const std::string& output);

  /// Asks nothing: what `answers` leave out is as if Enter had been pressed. Throws ConfigError
  /// that names `source` where an answer is missing or contradicts the others.
  WizardResult take(const std::vector<Answer>& answers, const std::string& source,
                    const std::string& output);

 private:
  enum class Reply { answered, back };

  const std::vector<const Field*>& questions() const { return wizard_fields(); }
  bool applies(size_t which) const;
  bool is_open(size_t which) const;
  size_t next_applying(size_t from) const;
  size_t first_open() const;
  size_t last_applying(size_t before) const;
  std::string offered(const Field& field) const;
  std::vector<Answer> answers_in_order() const;

  std::string read_line();
  Reply ask(size_t which);
  void print_topic(size_t which);
  bool accept(const Field& field, const std::string& value, std::string& refusal);
  void forget_what_no_longer_applies();
  void explain(const Field& field);
  void print_memory();
  size_t review(const std::string& output);
  void print_review(const std::vector<size_t>& shown);
  std::string files_text(const std::string& output) const;
  bool may_write(std::string& output);
  bool may_be_too_large();
  WizardResult result(const std::string& output) const;
  std::string heading(const std::string& text) const;
  void print(const std::string& text);

  std::istream& in_;
  std::ostream& out_;
  WizardHooks hooks_;
  WizardStyle style_;
  std::map<std::string, std::string> answers_;  // by key, in YAML
  std::map<std::string, std::string> fitting_;  // what is offered for an answer that does not fit
  std::set<std::string> passed_;                // optional questions that stay unset
  Settings settings_;                           // the settings that the answers give
  const Field* last_asked_ = nullptr;
  std::string last_memory_;  // the last line printed, so that it is not repeated
};

}  // namespace fp8train
