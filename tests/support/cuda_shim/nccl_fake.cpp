#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "nccl_clique.h"

namespace fp8train::shim {
namespace {

/// Of rank `from`'s parts those that go to `to`, or of `to`'s those that come from `from`.
std::vector<const NcclPart*> parts_between(const NcclStart& start, bool sends, int peer) {
  std::vector<const NcclPart*> found;
  for (const NcclPart& part : start.parts) {
    if (part.sends == sends && part.peer == peer) {
      found.push_back(&part);
    }
  }
  return found;
}

std::string unmatched_group(const NcclOperation& operation) {
  const int size = static_cast<int>(operation.starts.size());
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const auto sent = parts_between(*operation.starts[static_cast<size_t>(from)], true, to);
      const auto taken = parts_between(*operation.starts[static_cast<size_t>(to)], false, from);
      bool same = sent.size() == taken.size();
      for (size_t i = 0; same && i < sent.size(); ++i) {
        same = sent[i]->bytes == taken[i]->bytes;
      }
      if (!same) {
        return "what rank " + std::to_string(from) + " sends to rank " + std::to_string(to) +
               " is not what that one receives";
      }
    }
  }
  return {};
}

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
      } else if (name == "group") {
        const auto sent = parts_between(other, true, static_cast<int>(to));
        const auto taken = parts_between(own, false, static_cast<int>(from));
        for (size_t i = 0; i < sent.size(); ++i) {
          move_bytes(taken[i]->to, sent[i]->from, sent[i]->bytes);
        }
      }
    }
  }
}

}  // namespace

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
                      (start->name == "group" || other->parts[0].bytes == start->parts[0].bytes);
    if (!same) {
      return "operation " + std::to_string(sequence) + ": rank " + std::to_string(rank) +
             " starts " + start->name + " of " + std::to_string(start->parts[0].bytes) +
             " bytes where another starts " + other->name + " of " +
             std::to_string(other->parts[0].bytes);
    }
  }
  operation.starts[static_cast<size_t>(rank)] = std::move(start);
  return operation.all_started() && operation.starts.front()->name == "group"
             ? unmatched_group(operation)
             : std::string();
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
  const bool ready = error_ == ncclSuccess && aborted_.empty() && operation.all_started() &&
                     std::all_of(operation.starts.begin(), operation.starts.end(),
                                 [](const auto& start) { return start->is_ready(); });
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
