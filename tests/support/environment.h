#pragma once
// An environment variable for the length of a scope.

#include <cstdlib>
#include <optional>
#include <string>

namespace fp8train::test {

class EnvironmentScope {
 public:
  /// Null removes the variable.
  EnvironmentScope(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  ~EnvironmentScope() { set(before_ ? before_->c_str() : nullptr); }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  void set(const char* value) const {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace fp8train::test
