#include <fmt/format.h>

#include "base/content_hash.h"
#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "io/json_number.h"
#include "io/strict_json.h"

namespace fp8train::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "fp8train-checkpoint";

std::string hash_of(const std::string& text) {
  ContentHasher hasher;
  hasher.update(text.data(), text.size());
  return hasher.digest();
}

Json body_of(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const FileRecord& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
  }
  return {{"format", kFormat},
          {"version", kCheckpointVersion},
          {"step", manifest.step},
          {"run_id", manifest.run_id},
          {"files", std::move(files)}};
}

CheckpointManifest read_body(const Json& document, const std::string& where) {
  CheckpointManifest manifest;
  manifest.step = whole_number<int64_t>(document, "step", where);
  manifest.run_id = document.at("run_id").get<std::string>();
  for (const Json& file : document.at("files")) {
    manifest.files.push_back({file.at("name").get<std::string>(),
                              whole_number<uint64_t>(file, "bytes", where),
                              file.at("xxh3_128").get<std::string>()});
  }
  return manifest;
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  Json document = body_of(manifest);
  document["manifest_xxh3_128"] = hash_of(document.dump());
  return document.dump(1) + "\n";
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& where) {
  const Json document = parse_strict_json(text, where);
  try {
    if (!document.is_object() || document.value("format", "") != kFormat) {
      throw CheckpointError(where + ": not a checkpoint manifest");
    }
    const int version = whole_number<int>(document, "version", where);
    if (version != kCheckpointVersion) {
      throw CheckpointError(
          fmt::format("{}: checkpoint format version {}; this program reads version {}", where,
                      version, kCheckpointVersion));
    }
    CheckpointManifest manifest = read_body(document, where);
    // Comparing the whole text, not only the hash, also catches a change that the parser does not
    // see.
    if (manifest_text(manifest) != text) {
      throw CheckpointError(fmt::format("{}: damaged: its hash is {}, its content has {}", where,
                                        document.value("manifest_xxh3_128", "missing"),
                                        hash_of(body_of(manifest).dump())));
    }
    for (const FileRecord& file : manifest.files) {
      if (!is_plain_name(file.name)) {
        throw CheckpointError(fmt::format("{}: '{}' is not a plain file name", where, file.name));
      }
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: damaged: {}", where, error.what()));
  }
}

}  // namespace fp8train::detail
