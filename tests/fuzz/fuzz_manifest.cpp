// Any bytes as the manifest of a checkpoint, and a manifest made of any values: what is accepted is
// written as it was read, what was written is read as it was, and no byte of it can be changed.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "plain_message.h"

using fp8train::CheckpointManifest;

namespace {

bool same(const CheckpointManifest& a, const CheckpointManifest& b) {
  bool equal = a.step == b.step && a.run_id == b.run_id && a.files.size() == b.files.size();
  for (size_t i = 0; equal && i < a.files.size(); ++i) {
    equal = a.files[i].name == b.files[i].name && a.files[i].bytes == b.files[i].bytes &&
            a.files[i].xxh3_128 == b.files[i].xxh3_128;
  }
  return equal;
}

/// False where it is refused.
bool read(const std::string& text, CheckpointManifest& manifest) {
  try {
    manifest = fp8train::detail::parse_manifest(text, "input");
    return true;
  } catch (const fp8train::CheckpointError& error) {
    require_plain(error);
    return false;
  }
}

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// Values from the input: a step, a number of files, and for each its size and name.
CheckpointManifest made_of(const std::string& bytes) {
  size_t at = 0;
  const auto next = [&] { return at < bytes.size() ? static_cast<uint8_t>(bytes[at++]) : 0U; };
  const auto word = [&] {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) {
      value = value << 8 | next();
    }
    return value;
  };
  CheckpointManifest manifest;
  manifest.step = static_cast<int64_t>(word() >> 1);
  manifest.run_id = std::to_string(word());
  const unsigned files = next() % 4;
  for (unsigned i = 0; i < files; ++i) {
    std::string name = "f";
    for (unsigned length = next() % 20; length > 0; --length) {
      constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyz0123456789._-ABCXYZ";
      name.push_back(kPlain[next() % 45]);
    }
    manifest.files.push_back({name, word(), std::string(32, static_cast<char>('0' + next() % 10))});
  }
  return manifest;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckpointManifest manifest;
  if (read(text, manifest)) {
    check(fp8train::detail::manifest_text(manifest) == text);
  }
  const CheckpointManifest made = made_of(text);
  std::string written = fp8train::detail::manifest_text(made);
  check(read(written, manifest) && same(manifest, made));
  if (size >= 3) {
    const size_t position = (data[0] + 256U * data[1]) % written.size();
    const char before = written[position];
    written[position] = static_cast<char>(data[2]);
    check(written[position] == before || !read(written, manifest));
  }
  return 0;
}
