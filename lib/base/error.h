#pragma once
// Typed errors. Libraries throw these, never print and never exit; apps/ turns one into one message
// and an exit code. A message says what happened, where (file, line, tensor, key) and what to do.

#include <stdexcept>
#include <string>

namespace fp8train {

/// The base class of all typed errors.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The configuration or the command line cannot be used: exit code 2.
class ConfigError : public Error {
  using Error::Error;
};

/// A data set, tokenizer or token file cannot be used: exit code 3.
class DataError : public Error {
  using Error::Error;
};

/// A checkpoint or model folder cannot be used, or cannot be written: exit code 4.
class CheckpointError : public Error {
  using Error::Error;
};

/// A device is missing, or a resource (memory, disk) ran out: exit code 4.
class DeviceError : public Error {
  using Error::Error;
};

/// Ranks could not talk to each other: exit code 4.
class CommError : public Error {
  using Error::Error;
};

/// A rank or an operation between ranks made no progress in its time: exit code 86.
class TimeoutError : public CommError {
  using CommError::CommError;
};

/// Training diverged: exit code 5.
class NumericError : public Error {
  using Error::Error;
};

/// A broken promise inside the program: exit code 1.
class InternalError : public Error {
  using Error::Error;
};

/// Throws InternalError with the caller's location unless `condition` holds. For programmer errors,
/// not for bad input.
/// The location is the compiler's builtins rather than std::source_location, which clang 14 does
/// not have.
void check(bool condition, const char* message, const char* file = __builtin_FILE(),
           int line = __builtin_LINE(), const char* function = __builtin_FUNCTION());

}  // namespace fp8train
