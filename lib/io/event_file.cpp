#include "io/event_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <map>
#include <vector>

#include "base/error.h"

namespace fp8train {
namespace {

// Wire types of Protocol Buffers.
constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kFixed32 = 5;

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  }
  out.push_back(static_cast<char>(value));
}

void put_key(std::string& out, uint32_t field, uint32_t type) {
  put_varint(out, field << 3 | type);
}

template <class Bits>
void put_fixed(std::string& out, Bits bits) {
  for (size_t byte = 0; byte < sizeof(Bits); ++byte) {
    out.push_back(static_cast<char>(bits >> (8 * byte)));
  }
}

void put_number(std::string& out, uint32_t field, uint64_t value) {
  put_key(out, field, kVarint);
  put_varint(out, value);
}

void put_double(std::string& out, uint32_t field, double value) {
  put_key(out, field, kFixed64);
  put_fixed(out, std::bit_cast<uint64_t>(value));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

void put_doubles(std::string& out, uint32_t field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) {
    put_fixed(packed, std::bit_cast<uint64_t>(value));
  }
  put_bytes(out, field, packed);
}

/// Summary.value: `content` is what a Value has but its tag.
void put_value(std::string& summary, std::string_view tag, std::string_view content) {
  std::string value;
  put_bytes(value, 1, tag);
  value.append(content);
  put_bytes(summary, 1, value);
}

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ (0x82F63B78U & (0U - (rest & 1U)));
    }
    table[i] = rest;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

std::string record_of(std::string_view content) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(content.size()));
  put_fixed(record, masked_crc(record));
  record.append(content);
  put_fixed(record, masked_crc(content));
  return record;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::filesystem::path new_file_in(const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const auto micros = static_cast<int64_t>(seconds_now() * 1e6);
  return folder / fmt::format("events.out.tfevents.{:010}.{:06}.fp8train", micros / 1000000,
                              micros % 1000000);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  }
  return ~crc;
}

EventSummary& EventSummary::scalar(std::string_view tag, double value) {
  if (std::isfinite(value)) {
    std::string content;
    put_key(content, 2, kFixed32);
    put_fixed(content, std::bit_cast<uint32_t>(static_cast<float>(value)));
    put_value(encoded_, tag, content);
  }
  return *this;
}

EventSummary& EventSummary::text(std::string_view tag, std::string_view markdown) {
  std::string shape, dimension, tensor, plugin, metadata, content;
  put_number(dimension, 1, 1);
  put_bytes(shape, 2, dimension);
  put_number(tensor, 1, 7);  // DT_STRING
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, markdown);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_bytes(content, 8, tensor);
  put_bytes(content, 9, metadata);
  put_value(encoded_, tag, content);
  return *this;
}

EventSummary& EventSummary::histogram(std::string_view tag, std::span<const double> values,
                                      double bucket) {
  std::map<double, double> counts;  // by the upper limit of a bucket
  double sum = 0, squares = 0, least = 0, most = 0, count = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      continue;
    }
    least = count == 0 ? value : std::min(least, value);
    most = count == 0 ? value : std::max(most, value);
    sum += value;
    squares += value * value;
    ++count;
    ++counts[(std::floor(value / bucket) + 1) * bucket];
  }
  if (counts.empty()) {
    return *this;
  }
  std::vector<double> limits, filled;
  for (double limit = counts.begin()->first; limit <= counts.rbegin()->first + bucket / 2;
       limit += bucket) {
    const auto found = counts.lower_bound(limit - bucket / 2);
    const bool here = found != counts.end() && found->first < limit + bucket / 2;
    limits.push_back(limit);
    filled.push_back(here ? found->second : 0);
  }
  std::string histogram, content;
  put_double(histogram, 1, least);
  put_double(histogram, 2, most);
  put_double(histogram, 3, count);
  put_double(histogram, 4, sum);
  put_double(histogram, 5, squares);
  put_doubles(histogram, 6, limits);
  put_doubles(histogram, 7, filled);
  put_bytes(content, 5, histogram);
  put_value(encoded_, tag, content);
  return *this;
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t resume_step)
    : file_(new_file_in(folder)) {
  std::string version, session, start;
  put_bytes(version, 3, "brain.Event:2");
  write_event(0, version);
  put_number(session, 1, 1);  // START
  put_bytes(start, 7, session);
  write_event(resume_step + 1, start);
}

void EventFile::write(int64_t step, const EventSummary& summary) {
  if (!summary.empty()) {
    std::string content;
    put_bytes(content, 5, summary.encoded_);
    write_event(step, content);
  }
}

void EventFile::write_event(int64_t step, std::string_view content) {
  std::string event;
  put_double(event, 1, seconds_now());
  put_number(event, 2, static_cast<uint64_t>(step));
  event.append(content);
  file_.append(record_of(event));
}

}  // namespace fp8train
