#pragma once
// Pointers, which git-lfs leaves in a clone in place of large files (git-lfs, docs/spec.md: "The
// Pointer").

#include "base/input_file.h"

namespace fp8train {

/// Throws DataError, with what to do, where the file is such a pointer. read_text_file calls it.
void refuse_lfs_pointer(const InputFile& file);

}  // namespace fp8train
