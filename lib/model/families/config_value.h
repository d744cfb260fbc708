#pragma once
// The fields of a config.json that a family reads and writes, without a JSON library. lib/io turns
// them from and into text.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fp8train {

struct ConfigEntry;

/// An object's entries, in their order.
using ConfigObject = std::vector<ConfigEntry>;

/// null, true or false, a whole number, a number, a text, a list or an object.
class ConfigValue {
 public:
  using List = std::vector<ConfigValue>;
  using Data = std::variant<std::monostate, bool, int64_t, double, std::string, List, ConfigObject>;

  // All are defined out of line, because ConfigEntry is complete only after this class. Conversions
  // are implicit, as in JSON: set(object, "vocab_size", 32000).
  ConfigValue();  ///< null
  ~ConfigValue();
  ConfigValue(const ConfigValue& other);
  ConfigValue(ConfigValue&& other) noexcept;
  ConfigValue& operator=(const ConfigValue& other);
  ConfigValue& operator=(ConfigValue&& other) noexcept;
  ConfigValue(bool value);             // NOLINT(google-explicit-constructor)
  ConfigValue(int64_t value);          // NOLINT(google-explicit-constructor)
  ConfigValue(double value);           // NOLINT(google-explicit-constructor)
  ConfigValue(const char* text);       // NOLINT(google-explicit-constructor)
  ConfigValue(std::string_view text);  // NOLINT(google-explicit-constructor)
  ConfigValue(std::string text);       // NOLINT(google-explicit-constructor)
  ConfigValue(List list);              // NOLINT(google-explicit-constructor)
  ConfigValue(ConfigObject object);    // NOLINT(google-explicit-constructor)

  const Data& data() const { return data_; }
  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }

  /// Returns the value as JSON writes it, for messages.
  std::string text() const;

 private:
  Data data_;
};

struct ConfigEntry {
  std::string key;
  ConfigValue value;
};

/// Appends the entry, or replaces the value of an entry with this key.
void set(ConfigObject& object, std::string_view key, ConfigValue value);

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
  const ConfigValue& at(std::string_view key) const;

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
  const ConfigValue* find(std::string_view key) const;
  int64_t whole(std::string_view key, int64_t least) const;

  const ConfigObject* object_;
  std::string where_;
};

}  // namespace fp8train
