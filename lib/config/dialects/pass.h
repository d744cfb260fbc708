#pragma once
// One source's tree while keys of other programs are rewritten to ours. A program has tables of its
// keys, which Pass interprets, and code for what follows from several of them: accelerate.cpp,
// deepspeed.cpp and megatron.cpp. What all sources decide together is in State.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
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

/// A value of another program's key, and what becomes of it here.
struct ForeignValue {
  enum class Fate : uint8_t { ours, noted, ignored, refused };
  std::string_view theirs;  ///< simplified(); "*": any other, and not a text alone
  Fate fate = Fate::ours;
  /// ours: our value, empty for the same. noted: the line, in which {} is the value. refused: why.
  std::string_view text = {};
  const char* remark = "";  ///< of ours
};

/// Keys of another program's section, and what becomes of them here.
struct ForeignKey {
  enum class Meaning : uint8_t {
    ours,     ///< `text` is our key; the value means the same
    nothing,  ///< ForeignTable::without_meaning
    off,      ///< only a value that switches it off is accepted; `text` says what is missing here
    offload,  ///< offload.optimizer, by a device or a section that has one; `text` is its remark
    values,   ///< `text` is our key; `values` has what the values mean
    special,  ///< the section's own function reads it
  };
  std::string_view names;  ///< with blanks between them
  Meaning meaning = Meaning::nothing;
  std::string_view text = {};
  std::span<const ForeignValue> values = {};
  const char* expected = "true or false";  ///< all that `values` has
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

/// The second word of the entry whose first word is `name`, or nothing.
std::optional<std::string> find_word(std::span<const Words> table, std::string_view name);

/// A value on one line, for messages and comparison.
std::string text_of(const YamlNode& node);
/// The value that `text` is, with the mark of another one: a scalar, or a list as "[a, b]".
YamlNode value(const std::string& text, const YamlNode& origin);
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

struct Entry {
  std::string name;     ///< within its section
  std::string spelled;  ///< dotted, as written
  YamlKey key;
  YamlNode node;
};

/// A key that a source has, and where.
struct Given {
  std::string spelled;
  SourceMark mark;
  int layer = 0;
};

/// Another file that a source names.
struct Included {
  std::string path;
  SourceMark mark;
};

/// The facts of sources that all of them together decide.
struct State {
  struct Switch : Given {
    bool on = true;
  };
  struct Half : Given {
    std::string type;  ///< bf16 or fp16
  };
  /// Another program's default under one of its FP8 backends.
  struct Default : Given {
    std::string_view backend;  ///< fp8.backend
    std::string_view key, value, reason;
  };

  std::vector<std::string> notes;
  std::optional<Switch> fp8;   ///< fp8.enabled, or a key that means the same
  std::optional<Switch> fp32;  ///< a file of DeepSpeed that switches on neither fp16 nor bf16
  std::vector<Half> halves;    ///< fp16.enabled or bf16.enabled of DeepSpeed
  std::vector<Default> defaults;
  std::optional<Included> included;
  int64_t processes = 0;               ///< as a file states it; 0: none does
  std::optional<std::string> balance;  ///< Megatron's moe_aux_loss_coeff
  bool without_balance = false;        ///< its moe_router_load_balancing_type is none
};

class Pass;

/// A program while its keys in one source are read.
class Program {
 public:
  explicit Program(Pass& pass) : pass_(pass) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  virtual ~Program() = default;

  virtual bool recognizes(const Entry& entry) const = 0;
  virtual void read(const Entry& entry) = 0;
  /// Called after all keys, for settings that follow from several of them.
  virtual void finish() {}

 protected:
  Pass& pass_;
};
std::unique_ptr<Program> accelerate(Pass& pass);
std::unique_ptr<Program> deepspeed(Pass& pass);
std::unique_ptr<Program> megatron(Pass& pass);

/// One pass over the keys of a source, which rewrites the foreign ones.
class Pass {
 public:
  Pass(YamlNode& root, size_t source, int layer, Problems& problems, State& all)
      : state(all), root_(root), source_(source), layer_(layer), problems_(problems) {}

  /// False when nothing foreign was there.
  bool run();

  const YamlNode& root() const { return root_; }
  /// The mark of a key or a value.
  template <class At>
  SourceMark mark_of(const At& at) const {
    return {source_, at.line, at.column};
  }
  std::string where(SourceMark mark) const { return problems_.where(mark); }
  Given given(const Entry& entry) const { return {entry.spelled, mark_of(entry.key), layer_}; }
  /// Whether this source has fp8.enabled.
  bool has_switch() const { return has_switch_; }
  /// The value that our key has got; null if it has none.
  const YamlNode* value_for(std::string_view key) const;

  /// The product of the sizes that the model's axes have got.
  int64_t ranks_of_replica() const;
  void tell(std::string line);
  void complain(const Entry& entry, const std::string& text);
  void without_meaning(const Entry& entry);
  /// The value under our key, noted with a remark.
  void put(std::string_view key, const Entry& entry, YamlNode value, const char* remark = "");
  void put(std::string_view key, const Entry& entry, const std::string& text,
           const char* remark = "") {
    put(key, entry, value(text, entry.node), remark);
  }
  /// True, false, or neither with a problem.
  std::optional<bool> flag(const Entry& entry);

  using Special = std::function<void(const Entry&)>;
  /// Each key of a section, which may begin with `prefix`, as the table says.
  void section(const Entry& entry, const ForeignTable& table, std::string_view prefix,
               const Special& special = {});
  /// A key of the table; one that it does not have is a problem.
  void key(const Entry& entry, const ForeignTable& table, const Special& special = {});

  State& state;

 private:
  struct Pending {
    std::string key;  ///< ours, dotted
    Entry entry;      ///< entry with the value in our spelling
  };

  YamlNode own_section(const YamlNode& section, Program& megatron);
  void translate(const ForeignKey& key, const Entry& entry);
  void offload(const ForeignKey& key, const Entry& entry);
  void unknown(const Entry& entry, const ForeignTable& known);
  void insert_pending();
  YamlNode& section_for(const std::string& name, const YamlKey& origin);

  YamlNode& root_;
  size_t source_;
  int layer_;
  Problems& problems_;
  bool changed_ = false, has_switch_ = false;
  std::vector<Pending> pending_;
  std::vector<std::string> without_meaning_, automatic_;
};

}  // namespace fp8train::dialects
