#pragma once
// The files of a model folder other than config.json and the weights, as transformers writes them:
// the one list of what checkpoints, exports and prepared data copy.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace fp8train {

/// The part of a model folder that a file describes. A run may take them from two folders.
enum class FolderPart : uint8_t { tokenizer, model };

/// Returns the names of the files that `folder` has of a part, as in "merges.txt" and
/// "additional_chat_templates/rag.jinja". tokenizer.json, from which a tokenizer is opened, is not
/// among them.
std::vector<std::string> names_of_part(const std::filesystem::path& folder, FolderPart part);

/// Returns the same files. Throws DataError where one cannot be read or is larger than 256 MiB.
std::vector<TokenizerFile> read_part(const std::filesystem::path& folder, FolderPart part);

/// Returns a note about what else `folder` has, which is not copied; empty if nothing. Weights, an
/// index of weights and names that begin with '.' do not count.
std::string note_left_out(const std::filesystem::path& folder);

}  // namespace fp8train
