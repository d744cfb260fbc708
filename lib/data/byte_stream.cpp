#include "data/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/not_copied.h"
#include "base/text.h"

namespace fp8train {
namespace {

constexpr size_t kBufferBytes = 256U << 10;
constexpr std::string_view kGzipMagic = "\x1F\x8B";
constexpr std::string_view kZstdMagic = "\x28\xB5\x2F\xFD";

}  // namespace

/// The file as it is, and the base of those that decompress it.
class ByteSource : NotCopied {
 public:
  explicit ByteSource(const std::filesystem::path& path) : file_(path) {}
  virtual ~ByteSource() = default;

  /// At least one byte, except at the end.
  virtual size_t read(char* to, size_t bytes) { return read_file(to, bytes); }

  uint64_t position() const { return position_; }

 protected:
  size_t read_file(char* to, size_t bytes) {
    const auto part = static_cast<size_t>(std::min<uint64_t>(bytes, file_.size() - position_));
    file_.read(position_, to, part);
    position_ += part;
    return part;
  }

  /// Fills the buffer when all of it has been used; false at the end of the file.
  bool refill() {
    if (used_ < filled_) return true;
    buffer_.resize(kBufferBytes);
    filled_ = read_file(buffer_.data(), buffer_.size());
    used_ = 0;
    return filled_ > 0;
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(fmt::format("{}: damaged compressed data near byte {}: {}",
                                file_.path().string(), position_ - (filled_ - used_), what));
  }

  InputFile file_;
  uint64_t position_ = 0;
  std::vector<char> buffer_;
  size_t used_ = 0;
  size_t filled_ = 0;
};

namespace {

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : ByteSource(path) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&state_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~GzipSource() override { inflateEnd(&state_); }

  size_t read(char* to, size_t bytes) override {
    state_.next_out = reinterpret_cast<Bytef*>(to);
    state_.avail_out = static_cast<uInt>(std::min<size_t>(bytes, kBufferBytes));
    const uInt wanted = state_.avail_out;
    while (state_.avail_out == wanted) {
      if (!refill()) {
        if (within_member_) fail("the file is cut off");
        return 0;
      }
      if (!within_member_) {
        // Zero bytes behind a member fill up a block of a tape or of a disk.
        if (has_member_ && buffer_[used_] == '\0') {
          skip_zeros();
          return 0;
        }
        if (inflateReset(&state_) != Z_OK) fail("no gzip member");
      }
      within_member_ = has_member_ = true;
      state_.next_in = reinterpret_cast<Bytef*>(buffer_.data() + used_);
      state_.avail_in = static_cast<uInt>(filled_ - used_);
      const int status = inflate(&state_, Z_NO_FLUSH);
      used_ = filled_ - state_.avail_in;
      if (status == Z_STREAM_END) {
        within_member_ = false;  // another one may follow
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        fail(state_.msg != nullptr ? state_.msg : "not gzip");
      }
    }
    return wanted - state_.avail_out;
  }

 private:
  /// To the end of the file, where nothing else may be.
  void skip_zeros() {
    while (refill()) {
      if (buffer_[used_] != '\0') fail("bytes behind the last gzip member");
      ++used_;
    }
  }

  z_stream state_ = {};
  bool has_member_ = false;
  bool within_member_ = false;
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(const std::filesystem::path& path)
      : ByteSource(path), state_(ZSTD_createDStream()) {
    if (state_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdSource() override { ZSTD_freeDStream(state_); }

  size_t read(char* to, size_t bytes) override {
    ZSTD_outBuffer out = {to, bytes, 0};
    while (out.pos == 0) {
      // A frame that has more to say than fitted last time needs no input for it.
      if (!refill() && !pending_) {
        if (within_frame_) fail("the file is cut off");
        return 0;
      }
      ZSTD_inBuffer in = {buffer_.data(), filled_, used_};
      const size_t before = in.pos;
      const size_t left = ZSTD_decompressStream(state_, &out, &in);
      if (ZSTD_isError(left) != 0) fail(ZSTD_getErrorName(left));
      used_ = in.pos;
      within_frame_ = left != 0;
      pending_ = within_frame_ && out.pos == out.size;
      if (out.pos == 0 && in.pos == before && used_ == filled_) pending_ = false;
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* state_;
  bool within_frame_ = false;
  bool pending_ = false;
};

}  // namespace

ByteStream::ByteStream(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string head(std::min<uint64_t>(file.size(), kZstdMagic.size()), '\0');
  file.read(0, head.data(), head.size());
  if (head.starts_with(kGzipMagic)) {
    source_ = std::make_unique<GzipSource>(path);
  } else if (head.starts_with(kZstdMagic)) {
    source_ = std::make_unique<ZstdSource>(path);
  } else {
    source_ = std::make_unique<ByteSource>(path);
  }
}

ByteStream::~ByteStream() = default;

size_t ByteStream::read(char* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const size_t part = source_->read(to + done, bytes - done);
    if (part == 0) break;
    done += part;
  }
  return done;
}

bool ByteStream::append_to(std::string& text, size_t bytes) {
  const size_t begin = text.size();
  text.resize(begin + bytes);
  const size_t part = read(text.data() + begin, bytes);
  text.resize(begin + part);
  return part > 0;
}

uint64_t ByteStream::file_bytes_read() const {
  return source_->position();
}

std::filesystem::path without_compression(const std::filesystem::path& path) {
  const std::string extension = lower(path.extension().string());
  return extension == ".gz" || extension == ".zst" ? path.parent_path() / path.stem() : path;
}

}  // namespace fp8train
