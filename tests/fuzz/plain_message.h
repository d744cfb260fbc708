#pragma once
// Messages of errors that readers throw: a user sees them, so they are none of a library.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

/// Ends the process if a message is a library's own, such as "[json.exception.type_error.302]".
inline void require_plain(const std::exception& error) {
  const std::string_view message = error.what();
  for (const char* raw : {"[json.exception", "basic_string::", "vector::", "std::", "map::at"}) {
    if (message.find(raw) != std::string_view::npos) {
      std::fprintf(stderr, "a raw message: %s\n", error.what());
      std::abort();
    }
  }
}
