#pragma once
// The loader's interface to keys of other programs in a configuration. This class knows no keys;
// dialects/dialects.h does.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/yaml/problems.h"
#include "precision/plan.h"

namespace fp8train {

class GivenKeys;
struct YamlNode;

class ForeignKeys {
 public:
  ForeignKeys() = default;
  ForeignKeys(const ForeignKeys&) = delete;
  ForeignKeys& operator=(const ForeignKeys&) = delete;
  virtual ~ForeignKeys() = default;

  /// Rewrites the keys of one source; `root` is its tree. Returns false when there was nothing
  /// foreign in it.
  virtual bool translate(YamlNode& /*root*/, size_t /*source*/, int /*layer*/) { return false; }

  /// Why a source is not translated at all, in one sentence: it is a file of another trainer.
  virtual std::optional<std::string> refusal(const YamlNode& /*root*/) const { return {}; }

  /// Another file that the last translated source names, which is to be translated with the same
  /// layer. take_included() returns it once, or nothing where there is none.
  struct Included {
    std::string path;
    SourceMark mark;
  };
  virtual std::optional<Included> take_included() { return {}; }

  /// Returns the requests in a file of plans for layers (precision.file), in the order of
  /// PrecisionPlan::layers. Throws InternalError unless it is overridden.
  virtual std::vector<LayerRequest> layers_in_file(const std::string& /*path*/,
                                                   const std::string& /*text*/) {
    throw InternalError("plans for layers are in a file that no one here reads");
  }

  /// Called after the last source, before keys replace others that they exclude. Adds keys that
  /// give way to keys of other sources.
  virtual void settle(GivenKeys& /*given*/) {}

  /// Called after settle() and those replacements. Adds keys that only all sources together decide.
  virtual void finish(GivenKeys& /*given*/) {}

  /// One line for each key that was rewritten.
  virtual std::vector<std::string> notes() const { return {}; }

  /// Returns the number of processes that the sources state, or 0 if none does.
  virtual int64_t processes() const { return 0; }
};

/// Makes them for one load; errors in foreign keys go to the Problems. Null: no foreign key is
/// known.
using ForeignKeysMaker = std::function<std::unique_ptr<ForeignKeys>(Problems&)>;

}  // namespace fp8train
