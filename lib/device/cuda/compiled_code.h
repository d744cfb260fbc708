#pragma once
// Says for which GPUs a list of architectures, in the form of CMake's CUDA_ARCHITECTURES, has code.

#include <string>
#include <string_view>

namespace fp8train {

/// Whether code compiled for `architectures` ("89-real 90a-real 100-real 120-virtual") runs on a
/// GPU of this compute capability (89, 90, ...). Code of a real architecture runs on its capability
/// and on later ones of the same major number, that of one with an a on its own alone, and that of
/// a virtual one on its own and all later ones; without an ending it is both, and with an f as with
/// -real (CUDA programming guide, "Binary compatibility"). A list with words that are not numbers
/// (native, all) is trusted to have it.
bool has_code_for(std::string_view architectures, int capability);

/// Returns the capability as text, such as "8.9".
std::string capability_text(int capability);

}  // namespace fp8train
