#pragma once
// Errors that carry the configuration's keys that they are about. Their messages name them too. And
// words before the message of an error on its way to the caller, whose type stays.

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace fp8train {

/// Puts `text` before the message of an error that is then thrown again with `throw;`.
inline void prepend(Error& error, const std::string& text) {
  error = Error(text + error.what());
}

/// Returns the result of `work`. If it throws an Expected, puts `text` before the message.
template <class Expected, class Work>
auto with_prefix(const std::string& text, const Work& work) {
  try {
    return work();
  } catch (Expected& error) {
    prepend(error, text);
    throw;
  }
}

class HasKeys {
 public:
  /// Returns the key that the message begins with, and others that it names.
  const std::vector<std::string>& keys() const { return keys_; }

 protected:
  HasKeys(std::string key, const std::vector<std::string>& others) : keys_(others) {
    keys_.insert(keys_.begin(), std::move(key));
  }

 private:
  std::vector<std::string> keys_;
};

template <class Kind>
class Keyed : public Kind, public HasKeys {
 public:
  /// The message is the key and `text`, which begins with ": " or a space.
  Keyed(std::string key, const std::string& text, const std::vector<std::string>& others = {})
      : Kind(key + text), HasKeys(std::move(key), others) {}
};

using KeyError = Keyed<ConfigError>;

/// An option of the section fp8 that the plan does not read.
class MeaninglessOption : public KeyError {
  using KeyError::KeyError;
};

/// Returns the result of `work`. A Kind that it throws becomes an error of the key, after
/// "KEY: " and `about`.
template <class Kind, class Work>
auto keyed(const std::string& key, const Work& work, const std::string& about = "") {
  try {
    return work();
  } catch (const Kind& error) {
    throw Keyed<Kind>(key, ": " + about + error.what());
  }
}

}  // namespace fp8train
