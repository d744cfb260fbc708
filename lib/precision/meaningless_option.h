#pragma once
// The exception for an option of the section fp8 that the plan does not read.

#include <string>
#include <utility>

#include "base/error.h"

namespace fp8train {

/// An option without meaning, by its key. The message begins with the key.
class MeaninglessOption : public ConfigError {
 public:
  MeaninglessOption(std::string key, const std::string& message)
      : ConfigError(message), key_(std::move(key)) {}

  const std::string& key() const { return key_; }

 private:
  std::string key_;
};

}  // namespace fp8train
