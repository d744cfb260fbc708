#pragma once
// The fields of a config.json that a family reads and writes.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// An object with its entries in their order, or any other value of JSON.
using ConfigObject = nlohmann::ordered_json;

/// The double nearest to the float's shortest decimal, so that 1e-5F is written as 1e-05.
double decimal_of(float value);

/// Typed access to the fields of one object; null counts as absent. Does not own the object, which
/// outlives it. Errors are CheckpointErrors that begin with `where`.
class ConfigFields {
 public:
  ConfigFields(const ConfigObject& object, std::string where)
      : object_(&object), where_(std::move(where)) {}

  const ConfigObject& all() const { return *object_; }

  /// Throws CheckpointError "WHERE: what".
  [[noreturn]] void fail(const std::string& what) const;

  /// Whether the key is there with another value than null.
  bool has(std::string_view key) const;
  /// Whether the key is there, with null too.
  bool mentions(std::string_view key) const { return find(key) != nullptr; }
  /// Throws CheckpointError if the key is missing.
  const ConfigObject& at(std::string_view key) const;

  /// Returns a whole number from 1 to 2^31; `fallback` when absent, an error when there is no
  /// fallback.
  int64_t extent(std::string_view key, std::optional<int64_t> fallback = {}) const;
  /// Returns a whole number from 0 to 2^31.
  int64_t count(std::string_view key, int64_t fallback) const;
  /// Returns a finite number above 0; `fallback` when absent, an error when there is no fallback.
  double positive(std::string_view key, std::optional<double> fallback = {}) const;
  double number(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, const std::string& fallback) const;
  /// Returns a list of texts, which is empty when the field is absent.
  std::vector<std::string> texts(std::string_view key) const;
  /// Returns the ids of a field that has one id, as of a token, or a list of them; none when it is
  /// absent.
  std::vector<int64_t> ids(std::string_view key) const;
  /// Returns access to the object in a field; an error when it is absent.
  ConfigFields object(std::string_view key) const;

 private:
  const ConfigObject* find(std::string_view key) const;
  void refuse_unless(bool right, std::string_view key, const std::string& type) const;
  int64_t whole(std::string_view key, int64_t least) const;

  const ConfigObject* object_;
  std::string where_;
};

}  // namespace fp8train
