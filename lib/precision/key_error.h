#pragma once
// Errors of the configuration that carry their keys as data.

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace fp8train {

/// An error of keys: the one that the message begins with, and others of which it speaks.
class KeyError : public ConfigError {
 public:
  KeyError(std::string key, const std::string& message, const std::vector<std::string>& others = {})
      : ConfigError(message), keys_(others) {
    keys_.insert(keys_.begin(), std::move(key));
  }

  const std::vector<std::string>& keys() const { return keys_; }

 private:
  std::vector<std::string> keys_;
};

/// An option of the section fp8 that the plan does not read.
class MeaninglessOption : public KeyError {
  using KeyError::KeyError;
};

}  // namespace fp8train
