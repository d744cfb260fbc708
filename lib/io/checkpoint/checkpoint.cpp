#include "io/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>

#include "base/atomic_file.h"
#include "base/content_hash.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/text.h"
#include "io/strict_json.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPartial = ".partial";
constexpr const char* kReplaced = ".replaced";

/// Runs a file operation and turns its failure into a DeviceError.
template <typename Operation>
void require_done(const std::string& what, Operation&& operation) {
  std::error_code failure;
  operation(failure);
  if (failure) {
    throw DeviceError(fmt::format("cannot {}: {}", what, failure.message()));
  }
}

void rename_folder(const fs::path& from, const fs::path& to) {
  require_done(fmt::format("rename {} to {}", from.string(), to.string()),
               [&](std::error_code& failure) { fs::rename(from, to, failure); });
}

/// Returns why a folder cannot be removed, or an empty text.
std::string failed_removal(const fs::path& folder) {
  std::error_code failure;
  fs::remove_all(folder, failure);
  return failure ? fmt::format("cannot remove {}: {}", folder.string(), failure.message()) : "";
}

/// Returns the content of a folder; nothing if it does not exist. Throws DeviceError for any other
/// failure: a folder that cannot be listed is not an empty one.
std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> paths;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      paths.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    if (error.code() != std::errc::no_such_file_or_directory) {
      throw DeviceError(fmt::format("cannot list {}: {}", folder.string(), error.code().message()));
    }
  }
  return paths;
}

/// "step-000100.replaced": the checkpoint that a save of the same step set aside, where the save
/// was interrupted before the new one had its name.
bool waits_for_its_name(const fs::path& path) {
  const fs::path published = path.parent_path() / path.stem();
  return path.extension() == kReplaced && detail::step_of_folder(path.stem().string()) &&
         !fs::exists(published);
}

/// Whether no checkpoint needs a folder: "step-000100.partial", "step-000100.replaced" or, where it
/// could not be removed once, "step-000100.1.partial".
bool is_remains(const fs::path& path) {
  const fs::path extension = path.extension();
  fs::path name = path.stem();
  if (extension == kPartial && name.has_extension() &&
      whole_number<int>(name.extension().string().substr(1))) {
    name = name.stem();
  }
  return (extension == kPartial || extension == kReplaced) &&
         detail::step_of_folder(name.string()).has_value();
}

/// Removes a folder of remains, or gives it a number under which it is removed later: a file in it
/// may be open on another machine. Throws DeviceError where the name stays taken.
void free_name(const fs::path& folder) {
  std::error_code unseen;
  if (fs::symlink_status(folder, unseen).type() == fs::file_type::not_found ||
      failed_removal(folder).empty()) {
    return;
  }
  fs::path free;
  for (int number = 1; free.empty() || fs::exists(free, unseen); ++number) {
    free = folder.parent_path() / fmt::format("{}.{}{}", folder.stem().string(), number, kPartial);
  }
  rename_folder(folder, free);
}

/// Removes what interrupted saves left; a checkpoint that was set aside gets its name back. Returns
/// a sentence for each folder where that fails.
std::vector<std::string> clear_remains(const fs::path& root) {
  std::vector<std::string> failures;
  for (const fs::path& path : list_folder(root)) {
    try {
      if (is_remains(path) && waits_for_its_name(path)) {
        rename_folder(path, path.parent_path() / path.stem());
      } else if (is_remains(path) && fs::is_directory(path)) {
        failures.push_back(failed_removal(path));
      }
    } catch (const DeviceError& error) {
      failures.emplace_back(error.what());
    } catch (const fs::filesystem_error& error) {
      failures.emplace_back(error.what());
    }
  }
  std::erase(failures, "");
  return failures;
}

/// Gives `partial` the name `published`, where a checkpoint of the step may be already: the two
/// names are exchanged at once. A file system that cannot do that has a moment in which the old
/// checkpoint goes by the name step-000100.replaced, under which it is found too.
void publish(const fs::path& partial, const fs::path& published) {
  if (fs::exists(published)) {
    if (renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, published.c_str(), RENAME_EXCHANGE) == 0) {
      return;  // what was replaced is called .partial now
    }
    const std::error_code failure(errno, std::generic_category());
    if (failure != std::errc::invalid_argument && failure != std::errc::function_not_supported) {
      throw DeviceError(fmt::format("cannot exchange {} and {}: {}", partial.string(),
                                    published.string(), failure.message()));
    }
    const fs::path replaced = published.string() + kReplaced;
    free_name(replaced);
    rename_folder(published, replaced);
  }
  rename_folder(partial, published);
}

/// Asks the system to drop what it holds of a flushed file in memory, so that the next read comes
/// from the disk. It may refuse (a file system in memory has no disk).
void forget_cached(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.is_open()) {
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

}  // namespace

fs::path partial_checkpoint(const fs::path& root, int64_t step) {
  return root / (detail::checkpoint_folder(step) + kPartial);
}

fs::path begin_checkpoint(const fs::path& root, int64_t step) {
  check(step >= 0, "a checkpoint's step is negative");
  fs::path partial = partial_checkpoint(root, step);
  free_name(partial);
  require_done("create " + partial.string(),
               [&](std::error_code& failure) { fs::create_directories(partial, failure); });
  return partial;
}

FileRecord write_checkpoint_file(const fs::path& partial, const CheckpointFile& file) {
  if (!detail::is_plain_path(file.name) || file.name == detail::kManifestName) {
    throw CheckpointError(fmt::format("'{}' cannot be the name of a checkpoint file", file.name));
  }
  check(!file.text || file.tensors.empty(), "a checkpoint file holds text or tensors, not both");
  ContentHasher hasher;
  FileRecord record;
  record.name = file.name;
  create_folder((partial / file.name).parent_path());
  AtomicFile out(partial / file.name);
  const auto sink = [&](const void* data, size_t bytes) {
    out.write(data, bytes);
    hasher.update(data, bytes);
    record.bytes += bytes;
  };
  if (file.text) {
    sink(file.text->data(), file.text->size());
  } else {
    write_safetensors(file.tensors, {}, sink);
  }
  out.commit();
  record.xxh3_128 = hasher.digest();
  return record;
}

void read_back(const fs::path& partial, const FileRecord& record) {
  forget_cached(partial / record.name);
  try {
    verify_file(partial, record);
  } catch (const CheckpointError& error) {
    throw CheckpointError(
        fmt::format("what was written cannot be read back: {}; check the disk", error.what()));
  }
}

fs::path commit_checkpoint(const fs::path& root, int64_t step, const std::string& run_id,
                           const std::vector<FileRecord>& records, Verify depth) {
  const fs::path partial = partial_checkpoint(root, step);
  fs::path published = root / detail::checkpoint_folder(step);
  std::set<std::string> names;
  for (const FileRecord& record : records) {
    if (!names.insert(record.name).second) {
      throw CheckpointError(fmt::format("two files of a checkpoint are named '{}'", record.name));
    }
  }
  write_file_atomically(partial / detail::kManifestName,
                        detail::manifest_text({step, run_id, records}));
  verify_checkpoint(partial, depth);
  publish(partial, published);
  sync_directory(root);
  return published;
}

std::vector<std::string> tidy_checkpoints(const fs::path& root, int64_t newest) {
  std::vector<std::string> failures;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const DeviceError& error) {
      failures.emplace_back(error.what());
    }
  };
  attempt(
      [&] { write_file_atomically(root / "latest", detail::checkpoint_folder(newest) + "\n"); });
  attempt([&] {
    const std::vector<std::string> remains = clear_remains(root);
    failures.insert(failures.end(), remains.begin(), remains.end());
  });
  return failures;
}

void discard_partial(const fs::path& root, int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(partial_checkpoint(root, step), ignored);
}

bool is_checkpoint(const fs::path& folder) {
  return fs::exists(folder / detail::kManifestName);
}

std::vector<CheckpointFolder> find_checkpoints(const fs::path& root) {
  std::vector<CheckpointFolder> folders;
  for (const fs::path& path : list_folder(root)) {
    const fs::path name = waits_for_its_name(path) ? path.stem() : path.filename();
    const auto step = detail::step_of_folder(name.string());
    if (step && fs::is_directory(path)) {
      folders.push_back({path, *step});
    }
  }
  std::sort(folders.begin(), folders.end(),
            [](const CheckpointFolder& a, const CheckpointFolder& b) { return a.step > b.step; });
  return folders;
}

std::optional<CheckpointFolder> newest_valid(const fs::path& root,
                                             std::vector<std::string>& skipped,
                                             const std::function<void(const fs::path&)>& examine,
                                             Wanted wanted) {
  constexpr size_t kMostSentences = 5;
  size_t damaged = 0;
  std::optional<CheckpointFolder> found;
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    if (folder.step >= wanted.before) {
      continue;
    }
    try {
      verify_checkpoint(folder.path, wanted.depth);
      if (examine) {
        examine(folder.path);
      }
      found = folder;
      break;
    } catch (const CheckpointError& error) {
      if (++damaged <= kMostSentences) {
        skipped.push_back(skipped_checkpoint(folder.path, error.what()));
      }
    }
  }
  if (damaged > kMostSentences) {
    skipped.push_back(fmt::format("and {} more checkpoints", damaged - kMostSentences));
  }
  return found;
}

std::string skipped_checkpoint(const fs::path& checkpoint, const std::string& why) {
  return fmt::format("skipped checkpoint {}: {}", checkpoint.filename().string(), why);
}

fs::path checkpoint_of_step(const fs::path& root, int64_t step) {
  for (const CheckpointFolder& folder : find_checkpoints(root)) {
    if (folder.step == step) {
      return folder.path;
    }
  }
  throw CheckpointError(fmt::format(
      "the first rank continues from step {}, which is not here: all nodes must see the same "
      "checkpoints in {}",
      step, root.string()));
}

fs::path set_aside_checkpoint(const CheckpointFolder& checkpoint) {
  const fs::path root = checkpoint.path.parent_path();
  fs::path aside = root / (detail::checkpoint_folder(checkpoint.step) + ".diverged");
  free_name(aside);
  rename_folder(checkpoint.path, aside);
  sync_directory(root);
  return aside;
}

std::string remove_checkpoint(const CheckpointFolder& checkpoint) {
  const fs::path partial = partial_checkpoint(checkpoint.path.parent_path(), checkpoint.step);
  free_name(partial);
  rename_folder(checkpoint.path, partial);
  return failed_removal(partial);
}

}  // namespace fp8train
