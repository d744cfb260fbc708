#include "wizard/wizard.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/screen.h"
#include "base/text.h"
#include "base/written_path.h"
#include "config/show.h"
#include "config/yaml/problems.h"
#include "wizard/job_script.h"

namespace fp8train {
namespace {

constexpr size_t kLongestChoices = 50;
constexpr const char* kUnset = "-";

/// " (auto, cpu, cuda)" where the choice is between few names.
std::string choices_of(const Field& field) {
  const std::string names = joined(field.choices);
  return names.empty() || names.size() > kLongestChoices ? "" : fmt::format(" ({})", names);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 4 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// The questions and the answers to them so far. Streams and hooks outlive it.
class Wizard {
 public:
  Wizard(std::istream& in, std::ostream& out, const WizardHooks& hooks, WizardStyle style)
      : in_(in), out_(out), hooks_(hooks), style_(style) {}

  WizardResult talk(const std::string& output) {
    print("The settings of a run. Enter takes what is in brackets, ? explains, < goes back.\n");
    std::string file = output;
    size_t which = next_applying(0);
    while (which < questions().size()) {
      which = ask(which) == Reply::back ? last_applying(which) : next_applying(which + 1);
    }
    for (;;) {
      for (size_t open = first_open(); open < questions().size(); open = first_open()) {
        ask(open);
      }
      const size_t chosen = review(file);
      last_asked_ = nullptr;
      if (chosen < questions().size()) {
        ask(chosen);
      } else if (may_be_too_large() && may_write(file)) {
        break;
      }
    }
    return result(file);
  }

  WizardResult take(const std::vector<Answer>& answers, const std::string& source,
                    const std::string& output) {
    for (const Answer& answer : answers) {
      answers_[answer.key] = answer.value;
    }
    settings_ = read_answers(answers_in_order()).settings;
    for (size_t which = first_open(); which < questions().size(); which = first_open()) {
      const Field& field = *questions()[which];
      const std::string value = offered(field);
      if (value.empty()) {
        throw ConfigError(
            fmt::format("{}: {} is missing: {} ({})", source, field.key, field.doc, field.accepts));
      }
      std::string refusal;
      if (!accept(field, value, refusal) || !refusal.empty()) {
        throw ConfigError(fmt::format("{}: {} is missing, and {} does not fit: {}", source,
                                      field.key, value, trimmed(refusal)));
      }
    }
    const std::string obstacle = hooks_.obstacle ? hooks_.obstacle(settings_) : "";
    if (!obstacle.empty()) {
      throw ConfigError(fmt::format("{}: {}", source, obstacle));
    }
    return result(output);
  }

 private:
  enum class Reply { answered, back };

  const std::vector<const Field*>& questions() const { return wizard_fields(); }

  bool applies(size_t which) const {
    const Question& question = *questions()[which]->question;
    return (!question.when || question.when(settings_)) &&
           std::none_of(question.unless.begin(), question.unless.end(),
                        [&](const std::string& key) { return answers_.contains(key); });
  }

  bool is_open(size_t which) const {
    const std::string& key = questions()[which]->key;
    return applies(which) && !answers_.contains(key) && !passed_.contains(key);
  }

  size_t next_applying(size_t from) const {
    while (from < questions().size() && !applies(from)) {
      ++from;
    }
    return from;
  }

  size_t first_open() const {
    size_t which = 0;
    while (which < questions().size() && !is_open(which)) {
      ++which;
    }
    return which;
  }

  /// `before` itself when there is none.
  size_t last_applying(size_t before) const {
    for (size_t which = before; which-- > 0;) {
      if (applies(which)) {
        return which;
      }
    }
    return before;
  }

  /// The answer that Enter gives: the answer that there is, else what the table offers; empty:
  /// nothing.
  std::string offered(const Field& field) const {
    const auto given = answers_.find(field.key);
    if (given != answers_.end()) {
      return given->second;
    }
    const Question& question = *field.question;
    if (passed_.contains(field.key)) {
      return kUnset;
    }
    if (const auto fitting = fitting_.find(field.key); fitting != fitting_.end()) {
      return fitting->second;
    }
    std::string value = hooks_.offer ? hooks_.offer(field.key, settings_) : "";
    if (value.empty()) {
      value = question.suggest ? question.suggest(settings_) : field.write(settings_);
    }
    return value.empty() && question.optional ? kUnset : value;
  }

  std::vector<Answer> answers_in_order() const {
    std::vector<Answer> result;
    for (const auto& [key, value] : answers_) {
      result.push_back({key, value});
    }
    return result;
  }

  std::string heading(const std::string& text) const {
    return style_.bold ? "\x1b[1m" + text + "\x1b[0m" : text;
  }

  std::string read_line() {
    out_.flush();
    std::string line;
    if ((hooks_.stopped && hooks_.stopped()) || !std::getline(in_, line)) {
      out_ << "\n";
      throw InputEnded();
    }
    line = trimmed(line);
    if (style_.echo) {
      out_ << line << "\n";
    }
    return line;
  }

  /// Takes the value in, or says why not. An earlier answer that contradicts it is withdrawn, to be
  /// asked again.
  bool accept(const Field& field, const std::string& value, std::string& refusal) {
    const auto before = std::pair(answers_, passed_);
    std::string withdrawn;
    passed_.erase(field.key);
    answers_.erase(field.key);
    if (value == kUnset && field.question->optional) {
      passed_.insert(field.key);
    } else {
      answers_[field.key] = value;
    }
    for (;;) {
      ReadAnswers read = read_answers(answers_in_order());
      if (read.objections.empty()) {
        settings_ = std::move(read.settings);
        refusal = withdrawn;
        return true;
      }
      const auto& [key, text] = read.objections.front();
      if (key == field.key || !answers_.contains(key)) {
        std::tie(answers_, passed_) = before;
        refusal = text;
        return false;
      }
      withdrawn += fmt::format("{}; it is asked again\n", with_key(key, text));
      answers_.erase(key);
    }
  }

  /// Drops the answers to questions that the answers before them have made superfluous.
  void forget_what_no_longer_applies() {
    for (size_t which = 0; which < questions().size(); ++which) {
      const std::string& key = questions()[which]->key;
      if (!applies(which) && (answers_.erase(key) + passed_.erase(key)) > 0) {
        settings_ = read_answers(answers_in_order()).settings;
      }
    }
  }

  void explain(const Field& field) { print(explain_key(field.key, style_.columns)); }

  void print(const std::string& text) { out_ << wrapped(text, style_.columns); }

  void print_memory() {
    const std::string line = hooks_.memory ? hooks_.memory(settings_) : "";
    if (!line.empty() && line != last_memory_) {
      print("  " + line + "\n");
    }
    last_memory_ = line;
  }

  void print_topic(size_t which) {
    const Field& field = *questions()[which];
    const bool new_topic =
        last_asked_ == nullptr || last_asked_->question->topic != field.question->topic;
    if (new_topic) {
      out_ << "\n" << heading(title_of(field.question->topic)) << "\n";
    }
    if (field.question->preface && last_asked_ != &field) {
      print(field.question->preface(style_.columns));
    }
    if (hooks_.remark && last_asked_ != &field) {
      print(hooks_.remark(field.key, settings_));
    }
    last_asked_ = &field;
  }

  Reply ask(size_t which) {
    const Field& field = *questions()[which];
    print_topic(which);
    std::string doubted;
    for (;;) {
      const std::string enter = offered(field);
      const std::string brackets = enter.empty() ? "" : fmt::format(" [{}]", enter);
      print(field.question->text + choices_of(field) + brackets + ": ");
      std::string line = read_line();
      if (line == "?") {
        explain(field);
        continue;
      }
      if (line == "<") {
        return Reply::back;
      }
      line = line.empty() ? enter : line;
      if (line.empty() || (line == kUnset && !field.question->optional)) {
        print(fmt::format("  This answer cannot be left out. Enter {}.\n", field.accepts));
        continue;
      }
      std::string remark;
      if (!accept(field, line, remark)) {
        print(fmt::format("  {}\n", remark));
        continue;
      }
      print(remark);
      forget_what_no_longer_applies();
      const std::string doubt = hooks_.doubt ? hooks_.doubt(field.key, settings_) : "";
      if (!doubt.empty() && line != doubted) {
        doubted = line;
        print(fmt::format("  {}; Enter keeps it\n", doubt));
        continue;
      }
      if (field.question->changes_memory) {
        print_memory();
      }
      return Reply::answered;
    }
  }

  void print_review(const std::vector<size_t>& shown) {
    out_ << "\n" << heading("Review") << "\n";
    const Field* last = nullptr;
    for (size_t i = 0; i < shown.size(); ++i) {
      const Field& field = *questions()[shown[i]];
      if (last == nullptr || last->question->topic != field.question->topic) {
        out_ << "  " << title_of(field.question->topic) << "\n";
      }
      print(fmt::format("  {:>4}  {:<34}{}\n", i + 1, field.key, offered(field)));
      last = &field;
    }
    last_memory_.clear();
    print_memory();
  }

  /// The question to ask again, or as many as there are to write the files.
  size_t review(const std::string& output) {
    std::vector<size_t> shown;
    for (size_t i = next_applying(0); i < questions().size(); i = next_applying(i + 1)) {
      shown.push_back(i);
    }
    print_review(shown);
    for (;;) {
      const std::string obstacle = hooks_.obstacle ? hooks_.obstacle(settings_) : "";
      if (!obstacle.empty()) {
        print(fmt::format("This cannot run: {}\n", obstacle));
      }
      print((obstacle.empty() ? fmt::format("Enter writes {}; a", files_text(output)) : "A") +
            " number changes that answer; Ctrl-D leaves without writing: ");
      const std::string line = read_line();
      if (line.empty() && obstacle.empty()) {
        return questions().size();
      }
      if (line == "<") {
        return shown.back();
      }
      const size_t number = is_number(line) ? std::stoul(line) : 0;
      if (number >= 1 && number <= shown.size()) {
        return shown[number - 1];
      }
      out_ << fmt::format("  a number from 1 to {}{}\n", shown.size(),
                          obstacle.empty() ? ", or Enter" : "");
    }
  }

  /// "run.yaml and run.sbatch".
  std::string files_text(const std::string& output) const {
    return settings_.job.slurm ? fmt::format("{} and {}", output, job_script_path(output)) : output;
  }

  /// Asks before anything is replaced, and for another name where none can be written. False: back
  /// to the review.
  bool may_write(std::string& output) {
    for (;;) {
      const auto exists = [&](const std::string& path) {
        return hooks_.exists && hooks_.exists(path);
      };
      const WrittenPath written = written_path(output, PathUse::output);
      output = written.path;
      const std::string problem = !written.problem.empty() ? written.problem
                                  : hooks_.unwritable      ? hooks_.unwritable(output)
                                                           : "";
      if (!problem.empty()) {
        print(fmt::format("  {}\nAnother name, or Enter to go back: ", problem));
      } else if (exists(output) || (settings_.job.slurm && exists(job_script_path(output)))) {
        print(fmt::format("{} would be replaced: yes, another name for it, or Enter to go back: ",
                          files_text(output)));
      } else {
        return true;
      }
      const std::string line = read_line();
      if (line.empty() || line == "<" || line == "no") {
        return false;
      }
      if (line != "yes") {
        output = line;
      } else if (problem.empty()) {
        return true;
      }
    }
  }

  /// Asks before a run is written that does not fit into memory. With any answer but yes, what
  /// would make it fit is asked again, with the answers that do as defaults. False: back to the
  /// review.
  bool may_be_too_large() {
    const auto fitting = hooks_.fitting ? hooks_.fitting(settings_) : std::nullopt;
    if (!fitting) {
      return true;
    }
    out_ << "It does not fit into memory. Write anyway? [no]: ";
    if (const std::string line = read_line(); line == "yes" || line == "y") {
      return true;
    }
    fitting_.clear();
    for (const Answer& answer : *fitting) {
      fitting_[answer.key] = answer.value;
      answers_.erase(answer.key);
    }
    settings_ = read_answers(answers_in_order()).settings;
    return false;
  }

  WizardResult result(const std::string& output) const {
    WizardResult result{.settings = settings_, .asked = {}, .output = output};
    for (const auto& [key, value] : answers_) {
      result.asked.push_back(key);
    }
    return result;
  }

  std::istream& in_;
  std::ostream& out_;
  const WizardHooks& hooks_;
  WizardStyle style_;
  std::map<std::string, std::string> answers_;  // by key, in YAML
  std::map<std::string, std::string> fitting_;  // what is offered for an answer that does not fit
  std::set<std::string> passed_;                // optional questions that stay unset
  Settings settings_;                           // the settings that the answers give
  const Field* last_asked_ = nullptr;
  std::string last_memory_;  // the last line printed, so that it is not repeated
};

}  // namespace

WizardResult ask_settings(std::istream& in, std::ostream& out, const WizardHooks& hooks,
                          WizardStyle style, const std::string& output) {
  return Wizard(in, out, hooks, style).talk(output);
}

WizardResult take_answers(const std::vector<Answer>& answers, const WizardHooks& hooks,
                          const std::string& source, const std::string& output) {
  std::istringstream nothing;
  std::ostringstream screen;
  WizardResult result = Wizard(nothing, screen, hooks, {}).take(answers, source, output);
  check(screen.str().empty(), "given answers ask nothing");
  return result;
}

}  // namespace fp8train
