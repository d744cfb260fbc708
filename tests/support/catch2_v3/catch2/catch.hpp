#pragma once
// The one header of Catch2 2, where version 3 is installed, with the names that the tests use and
// that version 3 has in other headers (cmake/dependencies.cmake adds this folder).

#include <catch2/catch_all.hpp>
#include <string>

using Catch::Approx;

namespace Catch {

using Matchers::EndsWith;
using Matchers::Equals;
using Matchers::StartsWith;
using Matchers::VectorContains;

inline auto Contains(const std::string& part) {
  return Matchers::ContainsSubstring(part);
}

}  // namespace Catch
