// What ranks of a clique that are processes post for each other, and read.

#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "nccl_clique.h"

namespace fp8train::shim {
namespace {

std::string note(const std::string& kind, int rank) {
  std::ostringstream name;
  name << kind << '.' << rank;
  return name.str();
}
std::string note(const char* kind, uint64_t number, int rank) {
  std::ostringstream name;
  name << kind << '.' << number;
  return note(name.str(), rank);
}

/// Parts whose bytes go to other ranks.
bool gives(const NcclStart& start, int rank) {
  return start.name == "all_gather" || start.root == rank;
}

std::string text_of(const NcclStart& start) {
  std::ostringstream text;
  text << start.name << ' ' << start.root;
  for (const NcclPart& part : start.parts) {
    text << ' ' << part.sends << ' ' << part.peer << ' ' << part.bytes;
  }
  return text.str();
}

std::unique_ptr<NcclStart> start_of(const std::string& text) {
  auto start = std::make_unique<NcclStart>();
  start->is_remote = true;
  std::istringstream words(text);
  words >> start->name >> start->root;
  for (NcclPart part; words >> part.sends >> part.peer >> part.bytes;) {
    start->parts.push_back(part);
  }
  return start;
}

std::string bytes_of(const NcclStart& start, int rank) {
  std::string bytes;
  for (const NcclPart& part : start.parts) {
    if (gives(start, rank)) {
      bytes.append(static_cast<const char*>(part.from), part.bytes);
    }
  }
  return bytes;
}

void take_bytes(NcclStart& start, int rank, std::string bytes) {
  start.arrived = std::move(bytes);
  start.has_arrived = true;
  size_t begin = 0;
  for (NcclPart& part : start.parts) {
    if (gives(start, rank)) {
      part.from = start.arrived.data() + begin;
      begin += part.bytes;
    }
  }
}

}  // namespace

void NcclClique::enter(int rank, int device) {
  note_device(rank, device);
  if (board_ != nullptr) {
    board_->post(note("device", rank), std::to_string(device));
  }
}

void NcclClique::finalize(int rank) {
  finalized_.insert(rank);
  if (board_ != nullptr) {
    board_->post(note("finalized", rank), "");
  }
}

void NcclClique::abort(int rank) {
  aborted_.insert(rank);
  if (board_ != nullptr) {
    board_->post(note("aborted", rank), "");
  }
}

void NcclClique::leave(int rank) {
  if (board_ == nullptr) {
    return;
  }
  board_->post(note("left", rank), "");
  bool all = true;
  for (int other = 0; other < size(); ++other) {
    all = all && board_->read(note("left", other)).has_value();
  }
  if (all) {
    board_->remove_all();
  }
}

void NcclClique::arrive(int number, int rank, int color, int key) {
  splits_[number].come[rank] = {color, key};
  if (board_ != nullptr) {
    board_->post(note("split", static_cast<uint64_t>(number), rank),
                 std::to_string(color) + " " + std::to_string(key));
  }
}

void NcclClique::refresh() {
  if (board_ == nullptr) {
    return;
  }
  if (error_ == ncclSuccess) {
    if (const auto text = board_->read("error")) {
      const size_t space = text->find(' ');
      error_ = static_cast<ncclResult_t>(std::stoi(*text));
      why_ = text->substr(space + 1);
    }
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (devices_[static_cast<size_t>(rank)] == -1) {
      if (const auto device = board_->read(note("device", rank))) {
        note_device(rank, std::stoi(*device));
      }
    }
    if (!finalized_.empty() && board_->read(note("finalized", rank))) {
      finalized_.insert(rank);
    }
    if (board_->read(note("aborted", rank))) {
      aborted_.insert(rank);
    }
    for (auto& [number, split] : splits_) {
      if (split.come.count(rank) == 0) {
        if (const auto text = board_->read(note("split", static_cast<uint64_t>(number), rank))) {
          std::istringstream words(*text);
          std::pair<int, int>& chosen = split.come[rank];
          words >> chosen.first >> chosen.second;
        }
      }
    }
  }
}

std::string NcclClique::start(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start) {
  if (board_ != nullptr) {
    board_->post(note("start", sequence, rank), text_of(*start));
  }
  return join(sequence, rank, std::move(start));
}

void NcclClique::exchange_notes(uint64_t sequence, int rank) {
  NcclOperation& operation = operations_[sequence];
  for (int other = 0; other < size() && error_ == ncclSuccess; ++other) {
    if (operation.starts[static_cast<size_t>(other)] == nullptr) {
      if (const auto text = board_->read(note("start", sequence, other))) {
        const std::string broken = join(sequence, other, start_of(*text));
        if (!broken.empty()) {
          fail(ncclInvalidUsage, broken);
        }
      }
    }
  }
  if (error_ != ncclSuccess || !operation.all_started()) {
    return;
  }
  NcclStart& own = *operation.starts[static_cast<size_t>(rank)];
  if (!own.is_posted && own.is_ready()) {
    board_->post(note("data", sequence, rank), bytes_of(own, rank));
    own.is_posted = true;
  }
  for (int other = 0; other < size(); ++other) {
    NcclStart& start = *operation.starts[static_cast<size_t>(other)];
    if (start.is_remote && !start.has_arrived) {
      if (auto bytes = board_->read(note("data", sequence, other))) {
        take_bytes(start, other, std::move(*bytes));
      }
    }
  }
}

/// The sender posts the bytes, and the receiver that it has taken them.
bool NcclClique::post_part(const NcclStart& start, const NcclPart& part, int rank) {
  const auto [from, to, number] = key_of(rank, part);
  const std::string letter = note(note("letter", number, from), to);
  const std::string taken = note(note("taken", number, from), to);
  if (!start.is_ready()) {
    return false;
  }
  if (part.sends) {
    if (board_->read(taken)) {
      board_->remove(taken);
      return true;
    }
    if (!board_->read(letter)) {
      board_->post(letter, std::string_view(static_cast<const char*>(part.from), part.bytes));
    }
    return false;
  }
  const auto bytes = board_->read(letter);
  if (!bytes) {
    return false;
  }
  if (bytes->size() != part.bytes) {
    fail(ncclInvalidUsage, mismatched_ends(from, bytes->size(), to, part.bytes));
    return false;
  }
  std::memcpy(part.to, bytes->data(), bytes->size());
  board_->post(taken, "");
  board_->remove(letter);
  return true;
}

/// Who has posted the bytes of an operation has those of the one before.
void NcclClique::tidy(uint64_t sequence, int rank) const {
  if (board_ != nullptr && sequence > 0) {
    board_->remove(note("start", sequence - 1, rank));
    board_->remove(note("data", sequence - 1, rank));
  }
}

}  // namespace fp8train::shim
