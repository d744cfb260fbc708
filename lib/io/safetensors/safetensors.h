#pragma once
// The safetensors format (huggingface/safetensors: README.md, safetensors/src/tensor.rs): u64
// header length, JSON header, tensor bytes. The reader trusts nothing: every rule of the format is
// checked before the first allocation of tensor memory, and reads go through pread. The writer
// streams from the caller's memory. Both synchronous; a SafetensorsFile may be read from several
// threads, unless it is hashed.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/content_hash.h"
#include "base/input_file.h"
#include "numeric/dtype.h"

namespace fp8train {

/// An element type of the format: a line of its one table.
struct SafetensorsType {
  std::string_view name;  ///< "F32", "F8_E4M3"
  int bits = 0;
  std::optional<DType> dtype;  ///< empty: the program reads its size only ("BOOL")
};
/// Returns nothing for a name that the format does not have.
std::optional<SafetensorsType> safetensors_type(std::string_view name);
/// Throws InternalError for a type that files cannot have.
SafetensorsType safetensors_type(DType dtype);

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  SafetensorsType type;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< bytes from the start of the data
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t count() const;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< in order of their bytes
  std::map<std::string, std::string> metadata;
};

/// Checks and reads a JSON header for a file with `data_bytes` of data. `where` begins each
/// message. Throws CheckpointError for: a first byte other than '{', malformed JSON or UTF-8,
/// duplicate names or fields, unknown dtypes or fields, sizes that overflow or do not match the
/// shape, tensors that overlap, leave holes or do not end where the data ends, and metadata other
/// than strings.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t data_bytes,
                                           const std::string& where);

class SafetensorsFile {
 public:
  /// hashed: all bytes that are read, those of the header included, are those that hash() is of.
  enum class Reads : uint8_t { plain, hashed };

  /// Reads the header. Throws CheckpointError naming the file.
  explicit SafetensorsFile(const std::filesystem::path& path, Reads reads = Reads::plain);

  const std::filesystem::path& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }

  /// Returns null if the file has no tensor with this name.
  const SafetensorsEntry* find(std::string_view name) const;

  /// Reads the tensor's bytes into `to`, which holds entry.bytes(). Throws CheckpointError when the
  /// file ends before or reading fails.
  void read(const SafetensorsEntry& entry, void* to) const;
  /// Reads `bytes` of them from byte `offset` of the tensor on. Throws InternalError beyond its
  /// end.
  void read(const SafetensorsEntry& entry, uint64_t offset, size_t bytes, void* to) const;

  /// Returns the values as fp32, from F32, BF16, F16 or F64 (rounded to nearest). Throws
  /// CheckpointError for other dtypes and as read().
  std::vector<float> read_f32(const SafetensorsEntry& entry) const {
    return read_f32(entry, 0, entry.count());
  }
  /// Returns the `count` values from element `first` on in the same way.
  std::vector<float> read_f32(const SafetensorsEntry& entry, int64_t first, int64_t count) const;

  bool is_hashed() const { return hashed_ != nullptr; }

  /// Reads what has not been read yet and returns the XXH3-128 of the file, for one that is hashed.
  /// Throws CheckpointError when reading fails.
  std::string hash() const;

 private:
  void read_exactly(uint64_t offset, void* to, size_t bytes) const;

  InputFile file_;
  std::unique_ptr<HashedReads> hashed_;  // null: plain reads
  uint64_t data_start_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

using ByteSink = std::function<void(const void* data, size_t bytes)>;

/// A tensor to write: packed row-major host memory that stays the caller's, or a function that
/// writes the bytes in their order, a piece at a time.
struct TensorBytes {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::function<void(const ByteSink&)> stream = {};
};

/// Returns an entry of a file to be written; its offset is not known yet. Throws InternalError for
/// a type that files cannot have.
SafetensorsEntry safetensors_entry(const std::string& name, DType dtype,
                                   const std::vector<int64_t>& shape);

/// Writes one file's bytes into `sink`: tensors by element size descending, then by name; the
/// header padded with spaces to a multiple of 8; metadata always with "format": "pt", which
/// transformers asks for. Throws CheckpointError for a name that appears twice.
void write_safetensors(const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata, const ByteSink& sink);

/// Writes the same into a file that is wholly there or not at all. Throws DeviceError when the disk
/// refuses.
void write_safetensors(const std::vector<TensorBytes>& tensors,
                       const std::map<std::string, std::string>& metadata,
                       const std::filesystem::path& path);

/// A file that is written tensor by tensor, in any order, so that they need not be in memory
/// together. Nothing is visible before commit().
class SafetensorsWriter {
 public:
  /// The file will hold `entries`, of which the offsets do not matter but sizes (end - begin) do;
  /// in the order and with the metadata of write_safetensors. Throws as that does.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata);

  /// Writes the bytes of a tensor that has not been written yet. Throws InternalError for any
  /// other, DeviceError when the disk refuses.
  void write(const std::string& name, const void* data);

  /// Gives the file its name once every tensor has been written. Throws InternalError before.
  void commit();

 private:
  AtomicFile file_;
  uint64_t data_start_ = 0;
  std::map<std::string, SafetensorsEntry> missing_;
};

/// Returns model.safetensors.index.json for the file of each tensor, by name; `bytes`: of all.
std::string model_index(const std::map<std::string, std::string>& file_of, uint64_t bytes);

/// Takes the bytes of a tensor that was announced.
using TensorSink = std::function<void(const std::string& name, const void* data)>;

/// Writes the tensors of a model folder: model.safetensors, or shards and
/// model.safetensors.index.json, tensor by tensor so that they need not be in memory together.
class ShardedWriter {
 public:
  /// Shards are filled in order of names up to `max_shard_bytes`; a larger tensor has one of its
  /// own. As for SafetensorsWriter, offsets of entries do not matter. Throws DeviceError when the
  /// disk refuses, CheckpointError for a name that appears twice.
  ShardedWriter(const std::filesystem::path& folder, std::vector<SafetensorsEntry> entries,
                const std::map<std::string, std::string>& metadata, uint64_t max_shard_bytes);

  /// Writes the bytes of a tensor, in any order. Throws as SafetensorsWriter::write().
  void write(const std::string& name, const void* data);

  /// Gives the files their names, the index last, once every tensor has been written. Throws
  /// InternalError before.
  void commit();

  uint64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path folder_;
  uint64_t bytes_ = 0;  ///< of all tensors
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
  std::map<std::string, size_t> shard_of_;
};

}  // namespace fp8train
