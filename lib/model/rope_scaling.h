#pragma once
// How a model's rotary frequencies are stretched beyond the context of its first training:
// rope_scaling (rope_parameters) of a config.json, as transformers reads it
// (huggingface/transformers: src/transformers/modeling_rope_utils.py).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// linear: positions are divided. dynamic: nothing changes up to max_position_embeddings, and
/// longer sequences are refused here. llama3, yarn: low frequencies are divided, high ones stay.
enum class RopeType : uint8_t { linear, dynamic, llama3, yarn };

/// The factors of a scaled rotary embedding, named as in config.json.
struct RopeScaling {
  RopeType type = RopeType::llama3;
  double factor = 8.0;                              ///< context after / context before; 0: missing
  int64_t original_max_position_embeddings = 8192;  ///< llama3, yarn: the context before
  double low_freq_factor = 1.0;                     ///< llama3
  double high_freq_factor = 4.0;                    ///< llama3
  double beta_fast = 32.0;                          ///< yarn: rotations above which nothing changes
  double beta_slow = 1.0;         ///< yarn: rotations below which all of factor applies
  double attention_factor = 0.0;  ///< yarn: factor of cosines and sines; 0: follows from factor
  double mscale = 0.0;            ///< yarn: decides attention_factor with mscale_all_dim; 0: unset
  double mscale_all_dim = 0.0;
  bool truncate = true;  ///< yarn: the range between fast and slow ends at whole dimensions

  bool operator==(const RopeScaling&) const = default;
};

/// Returns the scaling of Llama 3.1 and later.
RopeScaling llama3_rope_scaling(double factor);

/// Returns a scaling with the defaults of the type. For types other than llama3 `factor` and
/// original_max_position_embeddings are 0: missing.
RopeScaling default_rope_scaling(RopeType type);

/// Returns "linear", "dynamic", "llama3" or "yarn".
std::string_view rope_type_name(RopeType type);
/// Returns nothing if no type has this name.
std::optional<RopeType> find_rope_type(std::string_view name);

/// Returns all names, in the order of RopeType.
std::vector<std::string> rope_type_names();

/// Returns a sentence about a missing factor or fields that contradict each other, or nothing if
/// all is well.
std::string rope_scaling_problem(const RopeScaling& scaling);

}  // namespace fp8train
