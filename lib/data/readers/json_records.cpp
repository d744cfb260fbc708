#include "data/readers/json_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log.h"

namespace fp8train {
namespace {

constexpr size_t kNamedRecords = 3;
constexpr size_t kNamedKeys = 20;

}  // namespace

void RecordNotes::note_bad(std::string what) {
  ++bad_;
  if (first_bad_.size() < kNamedRecords) first_bad_.push_back(std::move(what));
}

void RecordNotes::ignore_key(const std::string& key) {
  if (ignored_.size() <= kNamedKeys) ignored_.insert(key);
}

void RecordNotes::ignore_keys(const nlohmann::json& object,
                              std::initializer_list<std::string_view> read) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(read.begin(), read.end(), key) == read.end()) ignore_key(key);
  }
}

void RecordNotes::finish() const {
  if (bad_ > 0 && rules_.bad_lines == BadLines::error) {
    const std::string others =
        bad_ == 1 ? ""
                  : fmt::format("; {} more records of the file are bad, the next one is {}",
                                bad_ - 1, first_bad_[1]);
    throw DataError(fmt::format("{}{}; {}: skip leaves bad records out", first_bad_.front(), others,
                                rules_.bad_lines_option));
  }
  if (bad_ > 0) {
    log_warning(fmt::format("{}: {} bad records are left out: {}{}", path_, bad_,
                            fmt::join(first_bad_, "; "),
                            bad_ > static_cast<int64_t>(kNamedRecords) ? "; ..." : ""));
  }
  if (!ignored_.empty()) {
    const bool all = ignored_.size() <= kNamedKeys;
    log_info(fmt::format("{}: keys of its records that are not read: {}{}", path_,
                         fmt::join(ignored_, ", "), all ? "" : ", ..."));
  }
}

}  // namespace fp8train
