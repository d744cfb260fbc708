#pragma once
// Parameters and their gradients, each stored in the format that the precision plan says. The
// optimizer updates the value: the master weight if the plan has one in addition to the weight,
// otherwise the weight itself.
//
// If ranks share the optimizer's work by elements, the memory is that of StoreShards.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/arena.h"
#include "device/device.h"
#include "ops/cast/quantize.h"
#include "ops/storage/storage.h"
#include "precision/plan.h"
#include "tensor/sharding.h"
#include "tensor/stored_pool.h"

namespace fp8train {

enum class Init : uint8_t { zeros, ones, normal, uniform };

/// The form in which ranks gather a value of which each has a part.
enum class GatheredForm : uint8_t {
  value,     ///< the value as it is stored, which a layer reads in its passes
  operands,  ///< the same, of which layers only make operands
  copy,      ///< the 16-bit copy that a GEMM reads
  codes,     ///< the 8-bit codes that a GEMM reads
};

/// The form that layers need of a value of which each rank has a part. If it is a copy or codes, no
/// rank has a whole value: Parameter::stored_value has a format and no memory.
struct Gathering {
  GatheredForm form = GatheredForm::value;
  DType dtype = DType::f32;  ///< type of a copy or of codes
  int64_t blocks = 0;        ///< number of scales of codes with a scale for each block

  bool is_value() const { return form == GatheredForm::value || form == GatheredForm::operands; }
};

/// A parameter of the model: its shape, its formats, and views of its value and its gradient.
struct Parameter {
  std::string name;       ///< "layers.0.attention.qkv.weight"
  Shape shape;            ///< as stored; rows may be padded with zeros. None: that of `sharding`
  int64_t used_rows = 0;  ///< rows of the whole that the model has; the rest is padding
  /// The part of the whole that this is. If it has no shape, add() makes it a whole, with the
  /// position in the store of the whole model for its index.
  Sharding sharding = {};
  bool decay = true;  ///< weight decay applies (not to norms and biases)
  /// False: the value stays as it is. There is no gradient and no state of the optimizer.
  bool trained = true;
  /// The moments are in memory of the host, and so is a master weight (or this rank's part of it)
  /// of which layers at most make operands.
  bool offloads = false;
  /// False: another rank has the same parameter, or updates it, and has its part in the gradients'
  /// norm; that rank saves it.
  bool counts_in_norm = true;
  /// The rows of each matrix that is stacked in the weight of a hidden linear layer (q, k and v;
  /// gate and up). Empty for embedding, head, norm and bias.
  std::vector<int64_t> matrices;
  Init init = Init::normal;
  /// Of normal values; uniform ones are in [-init_std, init_std), and ones are it, unless it is 0.
  float init_std = 0.0F;
  /// It is not the model's own, but of an adapter or of codes: its index comes after those of the
  /// model's own parameters, which do not depend on it.
  bool is_added = false;
  ParameterFormats formats;  ///< fp32 unless a layer of the plan's own formats owns it
  Gathering gathered;
  /// One operation makes the whole gradient: the first micro-batch of a step overwrites it, so that
  /// nobody clears it before (StepContext::overwrites_gradients).
  bool overwritten = false;
  Encoded stored_value;
  Encoded stored_gradient;  ///< the sum over micro-batches, in running_gradient()
  View value;               ///< stored_value where that is fp32, else empty
  View gradient;            ///< stored_gradient where that is fp32, else empty
  /// The part that this rank's optimizer updates: the whole parameter, or the part that starts at
  /// element `first`, flat. The gradient of a part is fp32 or bf16; that of a whole parameter is
  /// `stored_gradient`, or the sum over ranks in another format.
  struct Updated {
    Encoded value, gradient;
    View gathered;  ///< the part of the copy or the codes; empty where it is the value
    /// fp32 [Gathering::blocks]: the largest magnitudes of blocks of the whole, from which all
    /// ranks make the same scales.
    View block_amax;
    int64_t first = 0;
    bool whole = true;

    int64_t count() const { return value.count(); }
    /// Another rank updates all of it (UpdateOwners), and sends the new value.
    bool elsewhere() const { return whole && count() == 0; }
  } updated;
  ops::AutoScale* automatic = nullptr;  ///< controller of a gradient whose wire scales itself
  /// With several ranks `automatic` scales their sum on the wire, not the gradient that one of them
  /// stores.
  bool scales_sum = false;
  View
      copy;  ///< bf16 or fp16 copy that GEMMs read; empty if there is none. Stored by the optimizer
  /// How the optimizer casts the new value for the first layer that has asked for a cast; empty: it
  /// casts none. With codes, the amax is combined into what is there; alone, it replaces it.
  ops::QuantizeSink cast;

  /// Whether the ranks of Group::expert have different ones, and those of Group::expert_state share
  /// it and its gradient. Ranks of Group::state share all others.
  bool of_experts() const { return sharding.cut == Axis::expert; }
  /// Sets the stored tensors and what follows from them.
  void set_stored(const Encoded& of_value, const Encoded& of_gradient);
};

using Parameters = std::vector<std::unique_ptr<Parameter>>;

/// Whether ranks gather a part of each value: the upper halves of master weights.
inline bool holds_gathered(const Parameter& parameter) {
  return parameter.formats.value.remainder && parameter.gathered.form == GatheredForm::copy;
}

/// Returns the memory to which a pass adds the gradient of a vector: that of the parameter or, if
/// it is not trained, scratch memory that nobody reads.
inline View gradient_memory(Arena& scratch, const Parameter& parameter) {
  return parameter.trained ? parameter.gradient : allocate(scratch, DType::f32, parameter.shape);
}

/// Which rank updates which parameters, where each updates whole ones.
struct UpdateOwners {
  int ranks = 1, rank = 0;
  std::vector<int> of;  ///< the rank of each parameter
};

/// The memory of a store's parameters if ranks share the optimizer's work by elements: a rank
/// stores the parts of values that it updates (Parameter::updated). Whole values and gradients are
/// at the addresses where layers find them, but ParameterGatherer (nn/context.h), which moves them
/// between ranks, determines their content.
class StoreShards {
 public:
  /// Which of the ranks that update different parameters or parts this rank is, and whether it
  /// writes its states.
  struct Share {
    int rank = 0, ranks = 1;
    bool writes = true;
  };

  virtual ~StoreShards() = default;
  /// Allocates the values and gradients of all parameters, and sets their views.
  virtual void allocate(Device& device) = 0;
  virtual Share share() const = 0;
  /// Returns what ParameterStore::cleared_gradients() does.
  virtual std::vector<View> cleared_gradients() const = 0;
  /// Returns the contiguous pieces of the gradients that this rank's optimizer reads: fp32 or bf16.
  virtual std::vector<View> updated_gradients() const = 0;
  /// Returns the scales of whole tensors, which all ranks that share their parts store alike:
  /// [tensors, 2]. `of_experts`: those with Parameter::of_experts(), or all others.
  virtual std::vector<View> shared_scales(bool of_experts) const = 0;
  /// Returns the Updated::block_amax of such parameters, padded to a multiple of the ranks that
  /// share them; empty if there are none.
  virtual View block_amax(bool of_experts) const = 0;
  /// Returns what ParameterStore::operand_memory() does. For a parameter whose copy or codes are
  /// gathered the first call returns the memory that they are gathered in; throws InternalError if
  /// it asks for another type or shape.
  virtual View operand_memory(Device& device, const Parameter& parameter, MemoryCategory category,
                              DType dtype, const Shape& shape) = 0;
};

class ParameterStore;

/// How ranks share the parameters of a store.
struct StoreSharing {
  bool exchanged = false;  ///< ranks exchange gradients
  /// Empty: every rank has and updates everything.
  std::function<std::unique_ptr<StoreShards>(const ParameterStore&)> shards;
  /// Empty: every rank updates everything that it has. Must be empty if there are shards.
  std::function<UpdateOwners(const ParameterStore&)> owners;
};

/// All parameters of a model, with the memory of their values and gradients.
class ParameterStore {
 public:
  /// Adds a parameter; `used_rows` of 0 becomes all rows. The pointer stays valid for the life of
  /// the store. Throws InternalError once the store is allocated.
  Parameter* add(Parameter parameter);
  /// False: parameters that are added from here on are those of layers that other ranks have. They
  /// are counted, for the positions of those that follow, and are in no list.
  void set_present(bool present) { present_ = present; }
  bool present() const { return present_; }
  /// Returns the Sharding::index of the parameter that is added next.
  uint64_t next_index() const { return parameters_.size() + absent_.size() - added_; }
  /// Returns the same for one with Parameter::is_added.
  uint64_t next_added_index() const { return kAddedIndices + added_; }

  /// Begins a unit: the parameters added from here on are read together by the model.
  void begin_unit() { unit_begins_.push_back(parameters_.size()); }
  /// The first parameter of each unit, and the number of all after them.
  std::vector<size_t> unit_begins() const;

  /// Allocates values and gradients as `sharing` says, in shards or whole, and sets them to zero.
  /// Without gradients their views stay empty. With owners this rank updates the parameters that it
  /// owns, and all ranks have whole values and gradients.
  void allocate(Device& device, bool with_gradients = true, const StoreSharing& sharing = {});

  const Parameters& all() const { return parameters_; }
  /// Returns the names of all parameters of the model, also of those of other ranks, in their
  /// order.
  std::vector<std::string> names() const;
  /// Queue i has the gradients that cross the wire as wires()[i]. Empty if there are shards.
  const StoredPool& gradients() const { return gradients_; }
  /// Returns the memory for sums over ranks of some gradients, flat as they are. Empty: sums
  /// replace the gradients.
  Encoded exchanged_gradients(const StoredPool::Stretch& stretch) const;
  /// Returns the gradients that must be zero before a step, and all gaps, as fp32 words: those in
  /// memory of their own, without those of Parameter::overwritten.
  std::vector<View> cleared_gradients() const;
  const std::vector<TensorFormat>& wires() const { return wires_; }

  /// Returns null if each rank has whole values.
  StoreShards* shards() const { return shards_.get(); }
  /// Returns null if no rank updates whole parameters of its own.
  const UpdateOwners* owners() const { return owners_ ? &*owners_ : nullptr; }
  /// Returns nothing if this rank updates all parameters.
  std::optional<StoreShards::Share> share() const;
  /// Returns the scales of values that have one for the tensor: [tensors, 2] each. `of_experts`: as
  /// for StoreShards.
  std::vector<View> tensor_scales(bool of_experts) const {
    return shards_ ? shards_->shared_scales(of_experts) : values_.tensor_scales(of_experts ? 1 : 0);
  }
  /// The controllers of all gradients that have one, in device memory; empty: none.
  std::span<ops::AutoScale> automatic_scales(bool of_experts) const {
    const std::span<ops::AutoScale> all = {static_cast<ops::AutoScale*>(automatic_.data()),
                                           automatic_.bytes() / sizeof(ops::AutoScale)};
    return of_experts ? all.subspan(shared_automatic_) : all.first(shared_automatic_);
  }
  /// Makes the controllers scale sums over ranks from now on.
  void scale_sums();
  /// Returns the controllers of some parameters, or nothing if these have none.
  std::vector<ops::AutoScale*> controllers_of(const std::vector<size_t>& parameters) const;
  /// Returns memory for a GEMM operand made of a value, as long as the store lives.
  View operand_memory(Device& device, const Parameter& parameter, MemoryCategory category,
                      DType dtype, const Shape& shape);

  /// Draws every parameter's initial value from Philox keyed by (seed, Sharding::index, element of
  /// the whole): the same on any device, and in any parts. `added_alone`: only that of parameters
  /// with Parameter::is_added. Does nothing on meta.
  void initialize(Device& device, uint64_t seed, bool added_alone = false);

 private:
  void allocate_wholes(Device& device, bool with_gradients, bool exchanged);
  void divide_updates(UpdateOwners owners);
  void allocate_automatic(Device& device);
  int wire_index(const TensorFormat& wire);

  Parameters parameters_;
  Parameters absent_;  ///< of other ranks
  bool present_ = true;
  static constexpr uint64_t kAddedIndices = uint64_t{1} << 30;
  uint64_t added_ = 0;
  std::vector<size_t> unit_begins_;
  StoredPool values_, gradients_;
  StoredPool sums_;                         ///< gradients that cross from another format
  std::vector<std::optional<size_t>> sum_;  ///< position of each parameter
  std::unique_ptr<StoreShards> shards_;
  std::optional<UpdateOwners> owners_;
  std::vector<Tensor> operands_;
  std::vector<TensorFormat> wires_;
  Buffer automatic_;             ///< ops::AutoScale, at last those of experts
  size_t shared_automatic_ = 0;  ///< those before
};

/// Returns the largest magnitude; NaN is larger than all.
float largest_magnitude(const std::vector<float>& values);
/// Whether the value is a part of a whole that has one scale.
bool scale_needs_whole(const Parameter& parameter);
/// Returns the memory category of a parameter's value.
MemoryCategory value_category(const Parameter& parameter);
/// Returns the flags of Parameter::overwritten.
std::vector<bool> overwritten_of(const Parameters& parameters);
/// Returns ParameterStore::cleared_gradients() for a pool of gradients, one for each parameter.
std::vector<View> cleared_gradients(const StoredPool& gradients, const Parameters& parameters);

/// Copy a parameter's value from and to the host, shape.count() floats in row-major order, cast to
/// its format, to nearest. With shards set_value() sets only the part that this rank updates;
/// value_to_host() is for a store without them and waits for the device. `amax`: that of the whole,
/// from which the scale of a part follows (scale_needs_whole()); else unused.
void set_value(Device& device, const Parameter& parameter, const float* values, float amax = 0.0F);
void value_to_host(Device& device, const Parameter& parameter, float* to);

}  // namespace fp8train
