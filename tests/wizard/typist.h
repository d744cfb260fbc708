#pragma once
// A dialogue with the wizard in which a program types the answers.

#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include "base/error.h"
#include "wizard/wizard.h"

namespace fp8train::test {

/// A reply to the question for a key; "review", "misfit" and "replace" are those of the end.
struct Reply {
  std::string key;
  std::string line;
};

inline constexpr const char* kEnd = "end of input";

/// Types like a person: looks at the last line of the screen and takes the next reply to that
/// question; Enter where there is none. So that tests do not depend on which questions there are.
class Typist : public std::streambuf {
 public:
  Typist(const std::ostringstream& screen, std::vector<Reply> replies)
      : screen_(screen), replies_(std::move(replies)) {}

  std::vector<std::string> asked;  ///< keys, in order

 protected:
  int_type underflow() override {
    const std::string key = asked_key();
    asked.push_back(key);
    std::string line;
    const auto reply = std::find_if(replies_.begin(), replies_.end(),
                                    [&](const Reply& one) { return one.key == key; });
    if (reply != replies_.end()) {
      line = reply->line;
      replies_.erase(reply);
    }
    constexpr size_t kPatience = 300;
    if (line == kEnd || asked.size() > kPatience) {
      return traits_type::eof();
    }
    line_ = line + "\n";
    setg(line_.data(), line_.data(), line_.data() + line_.size());
    return traits_type::to_int_type(line_[0]);
  }

 private:
  std::string asked_key() const {
    const std::string text = screen_.str();
    const std::string prompt = text.substr(text.rfind('\n') + 1);
    for (const Field* field : wizard_fields()) {
      if (prompt.starts_with(field->question->text)) {
        return field->key;
      }
    }
    return prompt.find("Write anyway") != std::string::npos        ? "misfit"
           : prompt.find("would be replaced") != std::string::npos ? "replace"
                                                                   : "review";
  }

  const std::ostringstream& screen_;
  std::vector<Reply> replies_;
  std::string line_;
};

struct Talk {
  WizardResult result;
  bool ended = false;
  std::string screen;
  std::vector<std::string> asked;

  size_t times(const std::string& key) const {
    return static_cast<size_t>(std::count(asked.begin(), asked.end(), key));
  }
};

inline Talk talk(std::vector<Reply> replies, const WizardHooks& hooks = {},
                 const WizardStyle& style = {.echo = true, .bold = false}) {
  std::ostringstream screen;
  Typist typist(screen, std::move(replies));
  std::istream keyboard(&typist);
  Talk done;
  try {
    done.result = ask_settings(keyboard, screen, hooks, style, "run.yaml");
  } catch (const InputEnded&) {
    done.ended = true;
  }
  done.screen = screen.str();
  done.asked = typist.asked;
  return done;
}

/// The only answer that has no default, and others.
inline std::vector<Reply> with_data(std::vector<Reply> more = {}) {
  more.push_back({"data.train", "a.txt"});
  return more;
}

inline WizardResult take(const std::vector<Answer>& answers, const WizardHooks& hooks = {}) {
  return take_answers(answers, hooks, "answers.yaml", "run.yaml");
}

inline std::string refusal_of(const std::vector<Answer>& answers) {
  try {
    take(answers);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

inline void check_columns(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    CHECK(line.size() <= 100);
  }
}

}  // namespace fp8train::test
