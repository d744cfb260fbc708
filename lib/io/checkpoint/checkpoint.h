#pragma once
// Checkpoints as folders that are either complete and verified or absent. A checkpoint is written
// into step-000100.partial/, every file flushed and read back, MANIFEST.json (sizes, XXH3-128
// hashes, step, run) last; then the folder is renamed to step-000100 and its parent flushed.
// Loading hashes every byte that it uses. Synchronous; tensor memory stays the caller's.
//
// One rank calls begin_checkpoint(), each calls write_checkpoint_file() and read_back(), and when
// all have succeeded the first one calls commit_checkpoint() with the records of all, and then
// tidy_checkpoints().
// io/checkpoint/checkpoint_retention.h decides which older checkpoints are deleted.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors/safetensors.h"

namespace fp8train {

/// One file: tensors (written as safetensors) or text. The name is plain (letters, digits, '.',
/// '_', '-'), or that of a folder and a plain name with '/' between them.
struct CheckpointFile {
  std::string name;
  std::vector<TensorBytes> tensors;
  std::optional<std::string> text;  ///< set: the file is this text and `tensors` is empty
};

struct FileRecord {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3_128;  ///< 32 hex digits
};

struct CheckpointManifest {
  int64_t step = 0;
  std::string run_id;
  std::vector<FileRecord> files;
};

struct CheckpointFolder {
  std::filesystem::path path;
  int64_t step = 0;
};

/// Makes an empty folder root/step-%06d.partial, in place of an earlier one, and returns its path.
/// Throws DeviceError.
std::filesystem::path begin_checkpoint(const std::filesystem::path& root, int64_t step);

/// Returns the path of the unpublished folder of `step`, for callers that write into it.
std::filesystem::path partial_checkpoint(const std::filesystem::path& root, int64_t step);

/// Writes one file into a partial folder and flushes it. Several processes may do so at once for
/// different names. Throws CheckpointError for a bad name, DeviceError when the disk refuses.
FileRecord write_checkpoint_file(const std::filesystem::path& partial, const CheckpointFile& file);

/// Reads a file of a partial folder again and compares its hash with that of the written bytes. The
/// system is asked to forget its copy first, so that the bytes come from the disk where it can do
/// that. Throws CheckpointError naming the file.
void read_back(const std::filesystem::path& partial, const FileRecord& record);

enum class Verify : uint8_t { sizes, hashes };

/// Writes the manifest, verifies the partial folder and publishes it as root/step-%06d; returns its
/// path. A checkpoint of the same step is replaced: a complete one is there at every moment. From
/// then on the checkpoint is saved. `depth` is Verify::sizes where every file has been read back.
/// Throws DeviceError when the disk refuses, and CheckpointError for a bad name or a file that is
/// not as it was written; the partial folder stays, and older checkpoints are untouched.
std::filesystem::path commit_checkpoint(const std::filesystem::path& root, int64_t step,
                                        const std::string& run_id,
                                        const std::vector<FileRecord>& records,
                                        Verify depth = Verify::hashes);

/// Writes the name of the newest checkpoint to root/latest and removes the remains of interrupted
/// saves and removals. Returns a sentence for each of these that fails, which harms no checkpoint;
/// the next call tries it again.
std::vector<std::string> tidy_checkpoints(const std::filesystem::path& root, int64_t newest);

/// Removes the partial folder of a step, if there is one. Never throws.
void discard_partial(const std::filesystem::path& root, int64_t step) noexcept;

/// Returns the published checkpoints under `root`, newest first, and those that an interrupted save
/// of the same step had set aside; none when `root` does not exist. Nothing is verified. Throws
/// DeviceError when `root` cannot be listed: that it holds nothing is then not known.
std::vector<CheckpointFolder> find_checkpoints(const std::filesystem::path& root);

/// Whether the folder has a manifest: a model folder of another program has none.
bool is_checkpoint(const std::filesystem::path& folder);

/// Checks the manifest (its own hash, and that its step is the folder's) and each file's size and,
/// with Verify::hashes, content. Throws CheckpointError naming the file and what was expected and
/// found.
CheckpointManifest verify_checkpoint(const std::filesystem::path& checkpoint,
                                     Verify depth = Verify::hashes);

/// Checks one file as verify_checkpoint() does.
void verify_file(const std::filesystem::path& checkpoint, const FileRecord& record,
                 Verify depth = Verify::hashes);

/// Throws CheckpointError unless the manifest lists the file `name` with this hash.
void require_hash(const std::filesystem::path& checkpoint, const CheckpointManifest& manifest,
                  const std::string& name, const std::string& hash);

/// Which checkpoints newest_valid() looks for, and how closely it looks at them.
struct Wanted {
  Verify depth = Verify::hashes;
  int64_t before = std::numeric_limits<int64_t>::max();  ///< only those of earlier steps
};

/// Returns the newest checkpoint that verifies, or nothing. One sentence for each newer one that
/// does not goes into `skipped`; of more than five the last says how many there are. Deletes
/// nothing. `examine` may look into one that verifies, and throws CheckpointError if its content is
/// of no use. Throws DeviceError as find_checkpoints() does.
std::optional<CheckpointFolder> newest_valid(
    const std::filesystem::path& root, std::vector<std::string>& skipped,
    const std::function<void(const std::filesystem::path&)>& examine = {}, Wanted wanted = {});
/// Returns the sentence of newest_valid() for a checkpoint.
std::string skipped_checkpoint(const std::filesystem::path& checkpoint, const std::string& why);

/// Returns the checkpoint of `step`, from which the first rank continues. Throws CheckpointError
/// where this rank does not see it.
std::filesystem::path checkpoint_of_step(const std::filesystem::path& root, int64_t step);

/// Deletes a published checkpoint. Its name goes first, so that an interruption leaves no half of
/// it. Throws DeviceError where the name stays. Returns why its files cannot be removed, or an
/// empty text; tidy_checkpoints() tries that again.
std::string remove_checkpoint(const CheckpointFolder& checkpoint);

/// Renames a published checkpoint to step-000100.diverged, which find_checkpoints() does not
/// return, and returns that path. An older one of that name is removed. Throws DeviceError.
std::filesystem::path set_aside_checkpoint(const CheckpointFolder& checkpoint);

/// Returns the content of a text file of a checkpoint. Throws CheckpointError when it is missing or
/// its hash is not that of the manifest.
std::string read_checkpoint_text(const std::filesystem::path& checkpoint, const std::string& name);

namespace detail {

constexpr int kCheckpointVersion = 1;
constexpr const char* kManifestName = "MANIFEST.json";

/// Returns the name of a published checkpoint, "step-000100", and the step of a name, or nothing
/// for any other name.
std::string checkpoint_folder(int64_t step);
std::optional<int64_t> step_of_folder(const std::string& name);

/// Write and read the text of MANIFEST.json; `where` begins messages. Reading throws
/// CheckpointError unless the text is byte for byte what manifest_text() writes for its content and
/// its hash.
std::string manifest_text(const CheckpointManifest& manifest);
CheckpointManifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace detail
}  // namespace fp8train
