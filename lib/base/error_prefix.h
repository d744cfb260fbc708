#pragma once
// Words before the message of an error on its way to the caller; its type stays.

#include <string>

#include "base/error.h"

namespace fp8train {

/// Puts `text` before the message of an error that is then thrown again with `throw;`.
inline void prepend(Error& error, const std::string& text) {
  error = Error(text + error.what());
}

/// Returns the result of `work`. The message of an Expected that it throws gets `text` in front.
template <class Expected, class Work>
auto with_prefix(const std::string& text, const Work& work) {
  try {
    return work();
  } catch (Expected& error) {
    prepend(error, text);
    throw;
  }
}

}  // namespace fp8train
