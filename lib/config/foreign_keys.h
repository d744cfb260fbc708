#pragma once
// Keys of other programs in a configuration, as the loader asks for them. This class knows none;
// dialects/dialects.h does.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fp8train {

class GivenKeys;
class Problems;
struct YamlNode;

class ForeignKeys {
 public:
  ForeignKeys() = default;
  ForeignKeys(const ForeignKeys&) = delete;
  ForeignKeys& operator=(const ForeignKeys&) = delete;
  virtual ~ForeignKeys() = default;

  /// Rewrites what one source says; `root` is its tree. False when there was nothing foreign in it.
  virtual bool translate(YamlNode& /*root*/, size_t /*source*/, int /*layer*/) { return false; }

  /// After the last source: what only all of them together say.
  virtual void finish(GivenKeys& /*given*/) {}

  /// One line for each key that was rewritten.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// Makes them for one load; what is wrong with a foreign key goes to the Problems. Null: no foreign
/// key is known.
using ForeignKeysMaker = std::function<std::unique_ptr<ForeignKeys>(Problems&)>;

}  // namespace fp8train
