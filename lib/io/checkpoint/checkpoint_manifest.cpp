#include <fmt/format.h>

#include <algorithm>

#include "base/content_hash.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json_error.h"
#include "base/json_reader.h"
#include "base/text.h"
#include "io/checkpoint/checkpoint.h"
#include "io/strict_json.h"

namespace fp8train::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "fp8train-checkpoint";
constexpr std::string_view kPrefix = "step-";

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
      if (!is_plain_path(file.name)) {
        throw CheckpointError(fmt::format("{}: '{}' is not a plain file name", where, file.name));
      }
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: damaged: {}", where, plain_json_error(error)));
  }
}

std::string checkpoint_folder(int64_t step) {
  return fmt::format("{}{:06}", kPrefix, step);
}

std::optional<int64_t> step_of_folder(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = whole_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return step && checkpoint_folder(*step) == name ? step : std::nullopt;
}

}  // namespace fp8train::detail

namespace fp8train {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxText = 1U << 30;

void compare_hash(const fs::path& path, const FileRecord& record, const std::string& found) {
  if (found != record.xxh3_128) {
    throw CheckpointError(fmt::format("{}: damaged: expected XXH3-128 {}, found {}", path.string(),
                                      record.xxh3_128, found));
  }
}

CheckpointManifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / detail::kManifestName;
  std::string text;
  try {
    text = read_text_file(path, kMaxJsonFile);
  } catch (const DataError& error) {
    throw CheckpointError(
        fmt::format("{}: not a complete checkpoint: {}", checkpoint.string(), error.what()));
  }
  CheckpointManifest manifest = detail::parse_manifest(text, path.string());
  const auto step = detail::step_of_folder(checkpoint.filename().string());
  if (step && *step != manifest.step) {
    throw CheckpointError(
        fmt::format("{}: the manifest is that of step {}; the folder was renamed or "
                    "its files belong to another checkpoint",
                    checkpoint.string(), manifest.step));
  }
  return manifest;
}

}  // namespace

void verify_file(const fs::path& checkpoint, const FileRecord& record, Verify depth) {
  const fs::path path = checkpoint / record.name;
  detail::as_checkpoint_error([&] {
    const InputFile file(path, InputFile::Links::refuse);
    if (file.size() != record.bytes) {
      throw CheckpointError(
          fmt::format("{}: expected {} bytes, found {}", path.string(), record.bytes, file.size()));
    }
    if (depth == Verify::hashes) {
      compare_hash(path, record, *hash_content(file));
    }
  });
}

void require_hash(const fs::path& checkpoint, const CheckpointManifest& manifest,
                  const std::string& name, const std::string& hash) {
  const auto found = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const FileRecord& record) { return record.name == name; });
  if (found == manifest.files.end()) {
    throw CheckpointError(
        fmt::format("{}/{} does not list {}", checkpoint.string(), detail::kManifestName, name));
  }
  compare_hash(checkpoint / name, *found, hash);
}

CheckpointManifest verify_checkpoint(const fs::path& checkpoint, Verify depth) {
  CheckpointManifest manifest = read_manifest(checkpoint);
  for (const FileRecord& record : manifest.files) {
    verify_file(checkpoint, record, depth);
  }
  return manifest;
}

std::string read_checkpoint_text(const fs::path& checkpoint, const std::string& name) {
  std::string text =
      detail::as_checkpoint_error([&] { return read_text_file(checkpoint / name, kMaxText); });
  ContentHasher hasher;
  hasher.update(text.data(), text.size());
  require_hash(checkpoint, read_manifest(checkpoint), name, hasher.digest());
  return text;
}

}  // namespace fp8train
