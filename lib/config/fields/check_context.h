#pragma once
// What the check of a field (Field::check) sees of a load, and where it complains.

#include <string>
#include <string_view>

#include "config/fields/field.h"
#include "config/settings.h"
#include "config/yaml/given_keys.h"

namespace fp8train {

/// whole: a run is to be started. begun: it is being planned; keys that must be given may follow,
/// and what the `job` section says of its ranks counts.
enum class Extent { whole, begun };

struct CheckContext {
  const Field& field;  ///< whose check this is
  const Settings& settings;
  const GivenKeys& given;
  Extent extent;

  bool is_given() const { return has(field.key); }
  bool has(std::string_view key) const { return given.find(key) != nullptr; }
  /// Nobody wrote it, or its value could be read.
  bool usable(std::string_view key) const;

  /// Adds a problem of the field.
  void complain(const std::string& text) const { given.complain(field.key, text); }
  /// The same at `other` where only that was written.
  void complain(const char* other, const std::string& text) const;
  /// False where the key may still follow, or is there with another spelling.
  bool may_be_missed() const;
  /// Complains of a key that may be missed.
  void missing(const std::string& text) const;
  /// The same for a key of `model` or `data`, with which a configuration begins.
  void missing_section(const std::string& text) const;
  /// Where the value is not the default, which says nothing.
  void without_meaning(const std::string& choice) const;
};

/// Adds every contradiction between settings to the problems of `given`.
void check_fields(const Settings& settings, const GivenKeys& given, Extent extent);

}  // namespace fp8train
