#include "data/inspect.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "data/byte_stream.h"
#include "data/document_encoder.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr int64_t kReadTokens = 1 << 20;
constexpr size_t kBytesAtATime = 1U << 20;
constexpr size_t kShownBytes = 200;

class Inspection {
 public:
  Inspection(const std::filesystem::path& path, const InspectSettings& settings)
      : path_(path), settings_(settings), format_(format_of(path, settings.format, kFormatOption)) {
    facts_.path = path.string();
    facts_.format = format_.name;
  }

  DataFileFacts run() {
    read_bytes();
    if (format_.has_tokens()) {
      read_tokens();
    } else {
      read_text();
    }
    if (settings_.tokenizer != nullptr && format_.has_tokens()) decode_sample();
    return std::move(facts_);
  }

 private:
  void read_bytes() {
    const InputFile file(path_);
    facts_.bytes = file.size();
    facts_.xxh3_128 = *hash_content(file);
  }

  void add_tokens(const int32_t* ids, size_t count) {
    const auto [least, most] = std::minmax_element(ids, ids + count);
    if (count > 0) {
      facts_.min_id = *facts_.tokens == 0 ? *least : std::min(facts_.min_id, *least);
      facts_.max_id = std::max(facts_.max_id, *most);
    }
    const auto wanted = static_cast<size_t>(settings_.sample_tokens) - facts_.first_ids.size();
    facts_.first_ids.insert(facts_.first_ids.end(), ids, ids + std::min(wanted, count));
    *facts_.tokens += static_cast<int64_t>(count);
  }

  void read_tokens() {
    const auto store = format_.open(path_, std::numeric_limits<int32_t>::max(), true);
    const TokenFacts stored = store->facts();
    facts_.type = stored.type;
    facts_.documents = stored.documents;
    facts_.tokens = 0;
    const int32_t end = settings_.tokenizer == nullptr ? -1 : settings_.tokenizer->eos_id();
    int64_t ends = 0;
    std::vector<int32_t> ids(static_cast<size_t>(std::min(store->size(), kReadTokens)));
    for (int64_t done = 0; done < store->size();) {
      const int64_t count = std::min(kReadTokens, store->size() - done);
      store->read(done, count, ids.data());
      add_tokens(ids.data(), static_cast<size_t>(count));
      ends += std::count(ids.begin(), ids.begin() + count, end);
      done += count;
    }
    if (!facts_.documents && end >= 0) facts_.documents = ends;
  }

  /// Counts documents and bytes, and encodes them where there is a tokenizer.
  void read_text() {
    facts_.documents = 0;
    facts_.text_bytes = 0;
    if (settings_.tokenizer == nullptr) {
      visit_text([this](std::string_view text, bool ends) { note_text(text, ends); });
      return;
    }
    facts_.tokens = 0;
    DocumentEncoder encoder(
        *settings_.tokenizer, settings_.threads, settings_.tokenizer->frame(),
        [this](const EncodedText& text) { add_tokens(text.ids.data(), text.ids.size()); });
    visit_text([&](std::string_view text, bool ends) {
      note_text(text, ends);
      encoder.add_part(text, ends);
    });
    encoder.finish();
  }

  /// Calls `visit` with parts of documents.
  template <typename Visit>
  void visit_text(const Visit& visit) {
    if (format_.content != DataContent::text) {
      format_.for_each_document(path_, settings_.rules,
                                [&](const std::string& document) { visit(document, true); });
      return;
    }
    ByteStream file(path_);
    std::string text;
    for (bool more = true; more;) {
      more = file.append_to(text, kBytesAtATime);
      const size_t whole = more ? without_cut_end(text).size() : text.size();
      visit(std::string_view(text).substr(0, whole), !more);
      text.erase(0, whole);
    }
  }

  void note_text(std::string_view text, bool ends) {
    *facts_.text_bytes += text.size();
    *facts_.documents += ends ? 1 : 0;
    const size_t wanted = kShownBytes - std::min(kShownBytes, facts_.first_text.size());
    facts_.first_text += text.substr(0, wanted);
    facts_.first_text.resize(without_cut_end(facts_.first_text).size());
  }

  void decode_sample() {
    const int64_t known = settings_.tokenizer->vocab_size();
    const bool is_known = std::all_of(facts_.first_ids.begin(), facts_.first_ids.end(),
                                      [&](int32_t id) { return known == 0 || id < known; });
    if (is_known) facts_.first_text = settings_.tokenizer->decode(facts_.first_ids);
  }

  const std::filesystem::path& path_;
  const InspectSettings& settings_;
  const DataFormat& format_;
  DataFileFacts facts_;
};

}  // namespace

DataFileFacts inspect_file(const std::filesystem::path& path, const InspectSettings& settings) {
  return Inspection(path, settings).run();
}

}  // namespace fp8train
