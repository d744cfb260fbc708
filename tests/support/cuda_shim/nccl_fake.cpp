#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "nccl_clique.h"

namespace fp8train::shim {
namespace {

void move_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

void perform(const NcclOperation& operation) {
  const size_t size = operation.starts.size();
  const std::string& name = operation.starts.front()->name;
  for (size_t to = 0; to < size; ++to) {
    const NcclStart& own = *operation.starts[to];
    if (own.is_remote) {
      continue;
    }
    for (size_t from = 0; from < size; ++from) {
      const NcclStart& other = *operation.starts[from];
      if (name == "all_gather") {
        const size_t bytes = own.parts[0].bytes;
        move_bytes(static_cast<char*>(own.parts[0].to) + from * bytes, other.parts[0].from, bytes);
      } else if (name == "broadcast" && static_cast<int>(from) == own.root) {
        move_bytes(own.parts[0].to, other.parts[0].from, own.parts[0].bytes);
      }
    }
  }
}

}  // namespace

std::string mismatched_ends(int from, size_t sent, int to, size_t taken) {
  return "rank " + std::to_string(from) + " sends " + std::to_string(sent) + " bytes to rank " +
         std::to_string(to) + ", which receives " + std::to_string(taken);
}

bool NcclStart::is_ready() const {
  return is_remote ? has_arrived : std::all_of(before.begin(), before.end(), [](const auto& work) {
    return work->over();
  });
}

bool NcclOperation::all_started() const {
  return std::all_of(starts.begin(), starts.end(), [](const auto& one) { return one != nullptr; });
}

void NcclClique::note_device(int rank, int device) {
  if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) {
    fail(ncclInvalidUsage, "Duplicate GPU detected");
  }
  devices_[static_cast<size_t>(rank)] = device;
  joined_ += 1;
}

void NcclClique::fail(ncclResult_t result, const std::string& reason) {
  if (error_ != ncclSuccess) {
    return;
  }
  error_ = result;
  why_ = reason;
  if (board_ != nullptr) {
    board_->post("error", std::to_string(result) + " " + reason);
  }
}

std::string NcclClique::join(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start) {
  NcclOperation& operation = operations_[sequence];
  operation.starts.resize(devices_.size());
  for (const auto& other : operation.starts) {
    if (other == nullptr) {
      continue;
    }
    const bool same = other->name == start->name && other->root == start->root &&
                      other->parts[0].bytes == start->parts[0].bytes;
    if (!same) {
      return "operation " + std::to_string(sequence) + ": rank " + std::to_string(rank) +
             " starts " + start->name + " of " + std::to_string(start->parts[0].bytes) +
             " bytes where another starts " + other->name + " of " +
             std::to_string(other->parts[0].bytes);
    }
  }
  operation.starts[static_cast<size_t>(rank)] = std::move(start);
  return {};
}

NcclClique::LetterKey NcclClique::key_of(int rank, const NcclPart& part) {
  return {part.sends ? rank : part.peer, part.sends ? part.peer : rank, part.number};
}

std::string NcclClique::start_group(int rank, const std::shared_ptr<NcclStart>& start) {
  for (NcclPart& part : start->parts) {
    part.number = part_numbers_[{rank, part.peer, part.sends}]++;
    if (board_ != nullptr) {
      continue;
    }
    Letter& letter = letters_[key_of(rank, part)];
    (part.sends ? letter.sender : letter.receiver) = start;
    (part.sends ? letter.sent : letter.taken) = &part;
    if (letter.sent != nullptr && letter.taken != nullptr &&
        letter.sent->bytes != letter.taken->bytes) {
      return mismatched_ends(part.sends ? rank : part.peer, letter.sent->bytes,
                             part.sends ? part.peer : rank, letter.taken->bytes);
    }
  }
  return {};
}

bool NcclClique::try_group(NcclStart& start, int rank) {
  if (start.is_asked) {
    return false;
  }
  refresh();
  start.is_asked = true;
  bool all = true;
  for (NcclPart& part : start.parts) {
    part.done =
        part.done || (error_ == ncclSuccess && aborted_.empty() &&
                      (board_ != nullptr ? post_part(start, part, rank) : try_part(part, rank)));
    all = all && part.done;
  }
  start.is_asked = false;
  return all;
}

bool NcclClique::try_part(const NcclPart& part, int rank) {
  const auto found = letters_.find(key_of(rank, part));
  Letter& letter = found->second;
  if (letter.sent == nullptr || letter.taken == nullptr || !letter.sender->is_ready() ||
      !letter.receiver->is_ready()) {
    return false;
  }
  move_bytes(letter.taken->to, letter.sent->from, letter.sent->bytes);
  letter.taken->done = letter.sent->done = true;
  letters_.erase(found);
  return true;
}

bool NcclClique::try_operation(uint64_t sequence, int rank) {
  NcclOperation& operation = operations_[sequence];
  if (operation.done) {
    return true;
  }
  if (board_ != nullptr) {
    refresh();
    exchange_notes(sequence, rank);
  }
  if (operation.is_asked) {
    return false;
  }
  operation.is_asked = true;
  const bool ready = error_ == ncclSuccess && aborted_.empty() && operation.all_started() &&
                     std::all_of(operation.starts.begin(), operation.starts.end(),
                                 [](const auto& start) { return start->is_ready(); });
  operation.is_asked = false;
  if (!ready) {
    return false;
  }
  perform(operation);
  operation.done = true;
  operation.starts.clear();
  tidy(sequence, rank);
  return true;
}

std::pair<std::shared_ptr<NcclClique>, int> NcclClique::split(int number, int rank) {
  refresh();
  Split& split = splits_[number];
  if (static_cast<int>(split.come.size()) < size()) {
    return {};
  }
  const int color = split.come.at(rank).first;
  std::vector<std::pair<int, int>> members;  // key and rank
  for (const auto& [other, chosen] : split.come) {
    if (chosen.first == color) {
      members.emplace_back(chosen.second, other);
    }
  }
  std::sort(members.begin(), members.end());
  std::shared_ptr<NcclClique>& made = split.made[color];
  if (made == nullptr) {
    const std::string name = std::to_string(number) + "-" + std::to_string(color);
    made = std::make_shared<NcclClique>(
        static_cast<int>(members.size()),
        board_ == nullptr ? nullptr : std::make_unique<NcclBoard>(board_->next_to(name)));
  }
  const auto own =
      std::find(members.begin(), members.end(), std::pair(split.come.at(rank).second, rank));
  return {made, static_cast<int>(own - members.begin())};
}

}  // namespace fp8train::shim
