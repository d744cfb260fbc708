#pragma once
// The commit of the sources that the program was built from.

namespace fp8train {

/// "1a2b3c4d5e6f", with "-dirty" where files differed from it; empty outside of a repository.
extern const char* const kCommit;

}  // namespace fp8train
