#pragma once
// One source's tree while keys of other programs are rewritten to ours. The table kPrograms
// (dialects.cpp) lists the programs. accelerate.cpp (fp8_config), launch.cpp (the rest of an
// Accelerate file), deepspeed*.cpp and megatron.cpp define the meaning of their keys; pass.cpp
// sets, reports and refuses them.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/foreign_names.h"
#include "config/yaml/problems.h"
#include "config/yaml/yaml_tree.h"

namespace fp8train::dialects {

/// A key of another program's section, and what becomes of it here.
struct ForeignKey {
  enum class Meaning : uint8_t {
    ours,     ///< `text` is our key; the value means the same
    nothing,  ///< ForeignTable::without_meaning
    off,      ///< only a value that switches it off is accepted; `text` says what is missing here
    one,      ///< only 1 is accepted; `text` says what is missing here
    special,  ///< the section's own function reads it; `text` may be our key
  };
  std::string_view name;
  Meaning meaning = Meaning::nothing;
  std::string_view text = {};
};

/// The keys of a section.
struct ForeignTable {
  std::span<const ForeignKey> keys;
  /// Names, with blanks between them, of keys that mean nothing here and change no result.
  std::string_view without_meaning = {};
  bool takes_auto = true;  ///< "auto" leaves a key to this program's own
};

/// The key of this name, if there is one.
std::optional<ForeignKey> find_key(const ForeignTable& table, std::string_view name);

inline constexpr const char* kOtherTraining = "it changes the training, and is not here";

using Words = std::pair<std::string_view, std::string_view>;

/// The entry whose first word is `name`, or the end.
template <class Table>
auto find_in(const Table& table, std::string_view name) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const Words& entry) { return entry.first == name; });
}

/// A value on one line, for messages and comparison.
std::string text_of(const YamlNode& node);
/// Values with the mark of another one.
YamlNode scalar(std::string text, const YamlNode& origin);
YamlNode flags(const std::array<bool, 3>& values, const YamlNode& origin);
/// True or false, or neither.
std::optional<bool> flag_in(const YamlNode& node);
/// Whether the value switches a feature off: nothing, false, none, 0, an empty list or section, or
/// a section with `enabled` or `device` that does.
bool is_off(const YamlNode& node);
/// DeepSpeed's "auto": whoever starts the run decides.
bool is_auto(const YamlNode& node);
/// Returns the whole number from 1 to 10^12 in `node`, or 0 for anything else.
int64_t count_in(const YamlNode& node);
/// The value of a key of a map; null where it is not there.
const YamlNode* value_of(const YamlNode& map, std::string_view key);

/// One pass over the keys of a source, which rewrites the foreign ones.
class Pass {
 public:
  Pass(YamlNode& root, size_t source, Problems& problems, std::vector<std::string>& notes)
      : root_(root), source_(source), problems_(problems), notes_(notes) {}

  /// Another program's default under one of its FP8 backends.
  struct BackendDefault {
    std::string_view backend;  ///< fp8.backend
    std::string_view key, value, reason;
    YamlKey at;
  };

  /// False when nothing foreign was there.
  bool run();

  /// fp8.enabled as it was written; null when it was not.
  const YamlNode* enabled() const { return enabled_ ? &*enabled_ : nullptr; }
  const YamlKey& enabled_key() const { return enabled_key_; }
  /// Returns deepspeed_config_file as it was written, if it applies, or null.
  const std::vector<BackendDefault>& defaults() const { return defaults_; }
  const YamlNode* included() const { return included_ ? &*included_ : nullptr; }
  /// Returns the number of processes that the file states, or 0.
  int64_t processes() const { return processes_; }
  /// Whether this is a file of DeepSpeed that switches on neither fp16 nor bf16.
  bool trains_in_fp32() const { return deepspeed_ && !half_; }
  /// The 16-bit type that a file of DeepSpeed switches on.
  struct HalfPrecision {
    std::string type;  ///< bf16 or fp16
    std::string spelled;
    YamlKey key;
  };
  const std::optional<HalfPrecision>& half_precision_on() const { return half_on_; }
  /// The top-level fp8_format (or `fp8`), which means "train in FP8" without saying it; null
  /// without it.
  const YamlKey* implied_key() const { return implied_key_ ? &*implied_key_ : nullptr; }

 private:
  struct Entry {
    std::string name;     ///< within its section
    std::string spelled;  ///< dotted, as written
    YamlKey key;
    YamlNode node;
  };
  struct Pending {
    std::string key;  ///< ours, dotted
    Entry entry;      ///< entry with the value in our spelling
  };

  /// A program whose keys are read.
  struct Program {
    /// Called before any key, to find which program's file this is. May be null.
    void (Pass::*recognize_file)() = nullptr;
    bool (Pass::*recognizes)(const Entry& entry) const = nullptr;
    void (Pass::*read)(const Entry& entry) = nullptr;
    /// Called after all keys, for settings that follow from several of them. May be null.
    void (Pass::*finish)() = nullptr;
  };
  /// The first one that recognizes a key reads it.
  static std::span<const Program> programs();

  // dialects.cpp
  YamlNode own_section(const YamlNode& section);

  // launch.cpp
  void recognize_accelerate();
  bool is_accelerate(const Entry& entry) const;
  void read_accelerate(const Entry& entry);
  static bool is_launch(std::string_view name);      // only Accelerate has it
  static bool is_launch_key(std::string_view name);  // Accelerate has it
  /// Returns the key of Accelerate that an unknown one at the top level may mean, or "".
  static std::string launch_key_near(const std::string& name);
  void launch(const Entry& entry);
  void launch_sections();
  void fsdp(const Entry& section);
  void fsdp_stage(const Entry& section);
  void deepspeed_plugin(const Entry& section);
  void megatron_plugin(const Entry& section);

  // deepspeed.cpp
  void recognize_deepspeed();
  bool is_deepspeed(const Entry& entry) const;
  void deepspeed(const Entry& entry);
  void half_precision(const Entry& entry);
  void switch_half_on(const std::string& type, const Entry& entry);
  void zero(const Entry& entry);
  void deepspeed_optimizer(const Entry& entry);
  void deepspeed_schedule(const Entry& entry);
  void schedule_parameter(const Entry& entry, const YamlNode& section);
  std::optional<double> peak_of(const YamlNode& schedule) const;
  void finish_batches();
  void finish_deepspeed();

  // accelerate.cpp
  void accelerate(const Entry& section);
  void accelerate_key(const ForeignKey& key, const Entry& entry);
  void tell_switch(const ForeignKey& key, const Entry& entry);
  void override_linear_precision(const ForeignKey& key, const Entry& entry);

  // megatron.cpp
  static bool is_megatron_key(std::string_view name);
  bool is_megatron(const Entry& entry) const;
  void read_megatron(const Entry& entry);
  void megatron(const Entry& entry);
  void megatron_format(const Entry& entry);
  void megatron_key(const ForeignKey& key, const Entry& entry);
  void finish_blocks();
  void tell_defaults();

  // pass.cpp
  static void keep(YamlNode& map, const YamlKey& key, YamlNode node);
  void tell(std::string line);
  void complain(const Entry& entry, const std::string& text);
  void unknown(const Entry& entry, const ForeignTable& known);
  using Special = std::function<void(const ForeignKey&, const Entry&)>;
  /// Each key of a section, which may begin with `prefix`, as the table says.
  void section(const Entry& entry, const ForeignTable& table, std::string_view prefix,
               const Special& special);
  void foreign(const ForeignKey& key, const Entry& entry, const Special& special,
               bool takes_auto = true);
  void without_meaning(const Entry& entry);
  void tell_without_meaning();
  /// The value under our key, noted with a remark.
  void put(std::string_view key, const Entry& entry, YamlNode value, const char* remark = "");
  /// Sets a default of the source's program, which `spelled` names.
  void put_default(std::string_view key, const std::string& spelled, const YamlNode& value,
                   const char* remark);
  /// True, false, or neither with a problem.
  std::optional<bool> flag(const Entry& entry);
  void insert_pending();
  YamlNode& section_for(const std::string& name, const YamlKey& origin);

  YamlNode& root_;
  size_t source_;
  Problems& problems_;
  std::vector<std::string>& notes_;
  bool changed_ = false;
  std::vector<Pending> pending_;
  std::vector<BackendDefault> defaults_;
  std::vector<std::pair<std::string_view, Entry>> counts_;  // num_layers_at_..._in_bf16, by our key
  std::optional<Entry> blocks_;                             // first_last_layers_bf16
  bool keeps_blocks_ = false;
  bool accelerate_ = false;  // the source is a file of Accelerate
  bool deepspeed_ = false;   // the source is a file of DeepSpeed
  std::optional<HalfPrecision> half_on_;
  bool half_ = false;  // fp16 or bf16 is on, or left to whoever starts the run
  int64_t processes_ = 0;
  std::string distributed_;  // Accelerate's distributed_type, simplified
  std::vector<std::string> without_meaning_, automatic_;
  std::vector<std::string> misspelled_;  // keys of Accelerate that others were meant to be
  std::optional<Entry> all_batches_, micro_batch_, accumulation_;  // DeepSpeed's three
  std::optional<YamlNode> included_;
  std::optional<YamlNode> enabled_;
  YamlKey enabled_key_;
  std::optional<YamlKey> implied_key_;
};

}  // namespace fp8train::dialects
