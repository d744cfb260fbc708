// The fake NCCL before the stand-in runtime: a library of its own, whose ranks are processes.

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "nccl_fake_ranks.h"

namespace fp8train::shim {

std::string new_clique_name() {
  std::string folder = (std::filesystem::temp_directory_path() / "fp8train_nccl_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    throw std::filesystem::filesystem_error(folder,
                                            std::error_code(errno, std::generic_category()));
  }
  return folder;
}

std::unique_ptr<NcclBoard> board_of(const std::string& name) {
  return std::make_unique<NcclBoard>(name);
}

}  // namespace fp8train::shim
