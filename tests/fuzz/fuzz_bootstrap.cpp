// What ranks find in the file that they meet by: the input is the run, and what somebody has left
// in the file. A rank takes what the first rank of its own run has written, whole, and nothing
// else.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "comm/backends/rendezvous.h"
#include "plain_message.h"
#include "scratch_file.h"

namespace {

constexpr size_t kBytes = 16;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// False: nothing of this run is there.
bool read(const fp8train::Rendezvous& rendezvous, std::string& found) {
  found.assign(kBytes, '\0');
  try {
    const fp8train::FileStore note(rendezvous, found.data(), kBytes);
    return true;
  } catch (const fp8train::CommError& error) {
    require_plain(error);
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) {
    return 0;
  }
  fp8train::Rendezvous first = {.rank = 0,
                                .size = 2 + data[0] % 7,
                                .local_rank = 0,
                                .node = 0,
                                .run = std::to_string(data[1]),
                                .file = scratch_path() + "-note",
                                .timeout_seconds = 0};
  fp8train::Rendezvous other = first;
  other.rank = 1;
  std::string payload(kBytes, '\0');
  std::memcpy(payload.data(), data + 4, std::min(size - 4, kBytes));
  std::string found;
  {
    std::string sent = payload;
    const fp8train::FileStore note(first, sent.data(), kBytes);
    const std::string path = note.path().string();
    const std::string whole = read_scratch(path);
    check(read(other, found) && found == payload);
    fp8train::Rendezvous larger = other;
    larger.size += 1;
    check(!read(larger, found));
    // A part of it, more than it, and it with one byte of its first line changed.
    write_scratch(path, whole.substr(0, data[2] % whole.size()));
    check(!read(other, found));
    write_scratch(path, whole + static_cast<char>(data[3]));
    check(!read(other, found));
    std::string changed = whole;
    changed[data[2] % (whole.size() - kBytes)] ^= static_cast<char>(1 + data[3] % 255);
    write_scratch(path, changed);
    check(!read(other, found));
    // Anything at all.
    const std::string any(reinterpret_cast<const char*>(data), size);
    write_scratch(path, any);
    check(!read(other, found) || any == whole.substr(0, whole.size() - kBytes) + found);
  }
  check(!std::filesystem::exists(scratch_path() + "-note." + first.run));
  return 0;
}
