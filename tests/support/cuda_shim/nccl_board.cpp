#include "nccl_board.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

namespace fp8train::shim {

namespace fs = std::filesystem;

NcclBoard::NcclBoard(fs::path folder) : folder_(std::move(folder)) {
  fs::create_directories(folder_);
}

void NcclBoard::post(const std::string& name, std::string_view text) const {
  const fs::path unfinished = folder_ / (name + "." + std::to_string(getpid()) + ".partial");
  std::ofstream(unfinished, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
  fs::rename(unfinished, folder_ / name);
}

std::optional<std::string> NcclBoard::read(const std::string& name) const {
  std::ifstream file(folder_ / name, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void NcclBoard::remove(const std::string& name) const {
  std::error_code ignored;
  fs::remove(folder_ / name, ignored);
}

void NcclBoard::remove_all() const {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

fs::path NcclBoard::next_to(const std::string& name) const {
  return folder_.string() + "-" + name;
}

}  // namespace fp8train::shim
