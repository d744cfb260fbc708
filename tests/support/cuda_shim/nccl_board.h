#pragma once
// How ranks that are processes tell each other what they have: notes in a folder that they share,
// each written once and seen whole or not at all. A communicator of the fake NCCL has one folder.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace fp8train::shim {

class NcclBoard {
 public:
  /// Makes the folder, unless another rank has. Throws std::filesystem::filesystem_error.
  explicit NcclBoard(std::filesystem::path folder);

  void post(const std::string& name, std::string_view text) const;
  /// Nothing where nobody has written it yet.
  std::optional<std::string> read(const std::string& name) const;
  void remove(const std::string& name) const;
  void remove_all() const;

  /// The folder of a communicator that is split from this one.
  std::filesystem::path next_to(const std::string& name) const;

 private:
  std::filesystem::path folder_;
};

}  // namespace fp8train::shim
