#include "base/lfs_pointer.h"

#include <string_view>

#include "base/error.h"

namespace fp8train {

void refuse_lfs_pointer(const InputFile& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr uint64_t kMaxPointer = 1024;
  if (file.size() < kBegin.size() || file.size() >= kMaxPointer) {
    return;
  }
  std::string begin(kBegin.size(), '\0');
  file.read(0, begin.data(), begin.size());
  if (begin == kBegin) {
    throw DataError(file.path().string() +
                    ": a pointer of git-lfs and not the file itself; fetch it with `git lfs pull`");
  }
}

}  // namespace fp8train
