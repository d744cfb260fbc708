#pragma once
// Paths that a person wrote where no shell has expanded them: in YAML, after `key=`, at a question.

#include <cstdint>
#include <string>

namespace fp8train {

/// Returns HOME, else the home directory of the user's account, or "" where nobody knows it.
std::string home_directory();

/// A path as it is opened, or why it is not taken.
struct WrittenPath {
  std::string path;
  std::string problem;  ///< empty: there is none
};

enum class PathUse : uint8_t { input, output };

/// Returns `text` with `~` or `~/` at its start replaced by the home directory (HOME, else that of
/// the user's account). A problem is `~name`, `$NAME` or `${NAME}`, which nothing here expands (a
/// file of such a name is written with `./` before a `~`, and not at all with a `$`), and an
/// address (`s3://...`), which nothing here opens; its advice depends on `use`.
WrittenPath written_path(const std::string& text, PathUse use = PathUse::input);

}  // namespace fp8train
