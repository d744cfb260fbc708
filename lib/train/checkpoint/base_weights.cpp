#include "train/checkpoint/base_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/input_file.h"
#include "io/export/quantize_matrix.h"
#include "io/model_source.h"
#include "io/strict_json.h"
#include "train/checkpoint/resume_checks.h"

namespace fp8train {
namespace {

/// A weight as codes and their scales, whole.
struct WholeCodes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

/// Codes of the format as they are; anything else is cast.
void add_piece(const TensorSource& source, const HfPiece& piece, int64_t columns,
               const TensorFormat& format, WholeCodes& whole) {
  const bool by_row = format.block == per::row;
  const EncodedWeight* const found = source.find_codes(piece.name);
  if (found != nullptr && are_in(*found, format) && found->rows == piece.rows &&
      found->columns == columns) {
    std::vector<uint8_t> codes(static_cast<size_t>(piece.rows * columns));
    source.files()[found->codes.file].read(found->codes.entry, codes.data());
    std::vector<float> scales = read_scales(*found, source.files());
    if (by_row) {
      scales.resize(static_cast<size_t>(piece.rows), scales.front());  // of the tensor
    }
    whole.codes.insert(whole.codes.end(), codes.begin(), codes.end());
    whole.scales.insert(whole.scales.end(), scales.begin(), scales.end());
    return;
  }
  std::vector<float> values = source.read_f32(piece.name, hf_shape(piece, false, columns));
  if (piece.transposed) {
    values = transposed(values, columns, piece.rows);
  }
  const auto cpu = make_device(DeviceKind::cpu);
  const QuantizedMatrix cast = quantize_matrix(
      cpu->stream(), {values.data(), DType::f32, {piece.rows, columns}}, format, {});
  const auto* const scales = reinterpret_cast<const float*>(cast.scales.data());
  whole.codes.insert(whole.codes.end(), cast.codes.begin(), cast.codes.end());
  whole.scales.insert(whole.scales.end(), scales, scales + cast.scales.size() / sizeof(float));
}

/// Copies this rank's part of the elements of a whole.
template <typename Element>
void upload_part(Device& device, const Parameter& parameter, const std::vector<Element>& whole) {
  std::vector<Element> part(static_cast<size_t>(parameter.shape.count()));
  parameter.sharding.for_each_stretch([&](int64_t local, int64_t element, int64_t count) {
    std::copy_n(whole.begin() + element, count, part.begin() + local);
  });
  const Encoded& to =
      parameter.updated.elsewhere() ? parameter.stored_value : parameter.updated.value;
  if (to.count() > 0) {
    copy_from_host(device, to.codes, part.data() + parameter.updated.first);
  }
}

}  // namespace

void load_codes(Device& device, const ModelConfig& config, const TensorSource& source,
                const Parameter& weight, const Parameter& scales) {
  WholeCodes whole;
  const int64_t columns = weight.sharding.width();
  for (const HfPiece& piece : hf_pieces(config, weight.name)) {
    add_piece(source, piece, columns, config.lora.base, whole);
  }
  upload_part(device, weight, whole.codes);
  upload_part(device, scales, whole.scales);
}

MissingTokens missing_tokens(const ModelSettings& model) {
  return model.resize_vocabulary > 0 ? MissingTokens::append : MissingTokens::refuse;
}

void load_base(Engine& engine, const Session& session, const Magnitudes& magnitudes) {
  const ModelSettings& model = session.settings.model;
  if (model.from.empty()) {
    return engine.model().initialize(session.settings.step.seed);
  }
  load_weights(engine.device(), engine.model(), TensorSource(model.from), missing_tokens(model),
               magnitudes);
}

/// The hash of all files of the model that is adapted; empty: there is none, or it was drawn.
std::string hash_of_base(const Session& session) {
  const std::string& from = session.settings.model.from;
  if (!session.engine.model.lora.is_on() || from.empty()) {
    return "";
  }
  const TensorSource source(from);
  ContentHasher all;
  for (const SafetensorsFile& file : source.files()) {
    const std::string hash =
        detail::as_checkpoint_error([&] { return *hash_content(InputFile(file.path())); });
    all.update(hash.data(), hash.size());
  }
  return all.digest();
}

void check_base(const nlohmann::json& json, const Session& session,
                const std::filesystem::path& folder) {
  if (json.value("base", "") != hash_of_base(session)) {
    throw OtherRunError(fmt::format(
        "{}: its adapters were trained on another base model than that of model.from ('{}'), whose "
        "files have another content: name the folder that they were trained on",
        folder.string(), session.settings.model.from));
  }
}

}  // namespace fp8train
