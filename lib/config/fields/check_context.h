#pragma once
// The view that the check of a field (Field::check) has of a load, and the functions by which it
// complains.

#include <string>
#include <string_view>

#include "config/fields/field.h"
#include "config/settings.h"
#include "config/yaml/given_keys.h"

namespace fp8train {

/// How much of a configuration must be given, in rising order. begun: a run is being planned; keys
/// that must be given may follow, and the ranks of the `job` section count. estimated: its needs
/// are asked for, and only the model must be given. whole: it is to be started.
enum class Extent { begun, estimated, whole };

struct CheckContext {
  const Field& field;  ///< whose check this is
  const Settings& settings;
  const GivenKeys& given;
  Extent extent;

  bool is_given() const { return has(field.key); }
  bool has(std::string_view key) const { return given.find(key) != nullptr; }
  /// Whether nobody wrote the key, or its value could be read.
  bool usable(std::string_view key) const;

  /// Adds a problem of the field.
  void complain(const std::string& text) const { given.complain(field.key, text); }
  /// Adds it at `other` if the field is not given.
  void complain(const char* other, const std::string& text) const;
  /// Whether the key is missing: configurations need it from the extent `least` on, and it is not
  /// there in a misspelled form.
  bool is_required_from(Extent least) const;
  /// Adds a problem if the key is required.
  void missing(const std::string& text, Extent least = Extent::whole) const;
  /// Adds a problem if the key is required, for one of `model` or `data`, with which a
  /// configuration begins.
  void missing_section(const std::string& text, Extent least = Extent::whole) const;
  /// Adds a problem if the key is given with another value than its default.
  void without_meaning(const std::string& choice) const;
};

/// Adds every contradiction between settings to the problems of `given`.
void check_fields(const Settings& settings, const GivenKeys& given, Extent extent);

}  // namespace fp8train
