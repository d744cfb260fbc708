#include "comm/collective_checks.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "comm/exchange/gradient_exchange.h"
#include "comm/exchange/reduce.h"
#include "tensor/tensor.h"

namespace fp8train::test {
namespace {

using Bytes = std::vector<uint8_t>;

void require(bool condition, const std::string& what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

Stream host() {
  return {DeviceKind::cpu, nullptr, nullptr};
}

/// Byte i of what rank `from` sends to rank `to`.
uint8_t pattern(int from, int to, size_t i) {
  return static_cast<uint8_t>(31 * from + 7 * to + 3 * static_cast<int>(i % 251) + 1);
}

Bytes message(int from, int to, size_t bytes) {
  Bytes made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    made[i] = pattern(from, to, i);
  }
  return made;
}

void append(Bytes& to, const Bytes& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// The messages that an all_to_all sends to others.
std::vector<Message> all_pairs(Communicator& comm, void* sent, void* received, size_t bytes) {
  std::vector<Message> messages;
  const auto part = [&](void* all, int rank) {
    return static_cast<uint8_t*>(all) + static_cast<size_t>(rank) * bytes;
  };
  for (int peer = 0; peer < comm.size() && bytes > 0; ++peer) {
    if (peer != comm.rank()) {
      messages.push_back({.peer = peer, .data = part(received, peer), .bytes = bytes});
      messages.push_back({.peer = peer, .sends = true, .data = part(sent, peer), .bytes = bytes});
    }
  }
  return messages;
}

void check_bytes(Communicator& comm, size_t bytes) {
  const auto size = static_cast<size_t>(comm.size());
  const std::string of = " of " + std::to_string(bytes) + " bytes";
  const Bytes own = message(comm.rank(), 0, bytes);
  Bytes sent;
  Bytes expected_gather;
  Bytes expected_exchange;
  for (int other = 0; other < comm.size(); ++other) {
    append(sent, message(comm.rank(), other, bytes));
    append(expected_gather, message(other, 0, bytes));
    append(expected_exchange, message(other, comm.rank(), bytes));
  }
  Bytes gathered(size * bytes);
  Bytes in_place(size * bytes);
  Bytes exchanged(size * bytes);
  uint8_t* part = in_place.data() + static_cast<size_t>(comm.rank()) * bytes;
  std::copy(own.begin(), own.end(), part);
  // All at once, and waited for from the last to the first.
  Work gather = comm.all_gather(host(), own.data(), gathered.data(), bytes);
  Work exchange = comm.all_to_all(host(), sent.data(), exchanged.data(), bytes);
  Work gather_in_place = comm.all_gather(host(), part, in_place.data(), bytes);
  gather_in_place.wait();
  exchange.wait();
  gather.wait();
  require(gather.done(), "what has been waited for is done");
  require(gathered == expected_gather, "all_gather" + of);
  require(in_place == expected_gather, "all_gather in place" + of);
  require(exchanged == expected_exchange, "all_to_all" + of);
  const size_t own_part = static_cast<size_t>(comm.rank()) * bytes;
  for (size_t i = 0; i < exchanged.size(); ++i) {
    exchanged[i] = i >= own_part && i < own_part + bytes ? exchanged[i] : uint8_t{0};
  }
  comm.exchange(host(), all_pairs(comm, sent.data(), exchanged.data(), bytes)).wait();
  require(exchanged == expected_exchange, "messages" + of);
  for (int root = 0; root < comm.size(); ++root) {
    Bytes data = comm.rank() == root ? message(root, 1, bytes) : Bytes(bytes);
    comm.broadcast(host(), data.data(), bytes, root).wait();
    require(data == message(root, 1, bytes), "broadcast from " + std::to_string(root) + of);
  }
}

void check_group(Communicator& group, const std::vector<int>& members, int rank) {
  require(group.all_gather_values(rank) == members, "the ranks of a group");
  check_bytes(group, 33);
}

/// Contribution of rank `rank` to element i: different scales along the tensor.
float gradient(int rank, int64_t i) {
  const double angle = 0.37 * static_cast<double>(i) + 1.7 * rank;
  return static_cast<float>(std::sin(angle) * std::exp2(static_cast<double>(i / 100 % 9) - 12));
}

std::vector<float> gradients(int rank, int64_t count) {
  std::vector<float> made(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    made[static_cast<size_t>(i)] = gradient(rank, i);
  }
  return made;
}

double exact_sum(int ranks, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += static_cast<double>(gradient(rank, i));
  }
  return sum;
}

/// Largest |gradient| of all ranks in the 128 elements around i.
double group_amax(int ranks, int64_t i, int64_t count) {
  double amax = 0;
  for (int64_t j = i / 128 * 128; j < std::min(i / 128 * 128 + 128, count); ++j) {
    for (int rank = 0; rank < ranks; ++rank) {
      amax = std::max(amax, std::abs(static_cast<double>(gradient(rank, j))));
    }
  }
  return amax;
}

struct WireCase {
  const char* name;
  GradientWire wire;
  double rounding;  ///< of a contribution and of a gathered mean, relative to the group's amax
  double gathered;
};

TensorFormat encoded_format(ScaleBlock block, ScaleType type) {
  return {.dtype = DType::e4m3, .block = block, .policy = ScalePolicy::current, .scale_type = type};
}

std::vector<WireCase> wire_cases(const Topology& topology) {
  const TensorFormat grouped = encoded_format(per::group(128), ScaleType::f32);
  const TensorFormat powers = encoded_format(per::group(128), ScaleType::pow2);
  const auto wire = [&](const TensorFormat& format) {
    return gradient_wire(format, false, topology);
  };
  GradientWire fp8_gather = wire(grouped);
  fp8_gather.gather = grouped;
  GradientWire exact = wire(grouped);
  exact.kind = WireKind::two_shot;
  exact.self_exact = true;
  const double e4m3 = 0x1p-4;
  const double bf16 = 0x1p-8;
  return {{"fp32", wire(plain(DType::f32)), 0, 0},
          {"bf16", wire(plain(DType::bf16)), bf16, bf16},
          {"fp8", wire(grouped), e4m3, bf16},
          {"fp8, gathered in fp8", fp8_gather, e4m3, e4m3},
          {"fp8, powers of two", wire(powers), e4m3, bf16},
          {"fp8, own exact", exact, e4m3, bf16}};
}

/// The mean as this rank has it; NaN where it has none.
std::vector<float> exchanged(Communicator& comm, Device& device, const GradientWire& wire,
                             int64_t count, ExchangeResult result, int64_t piece_bytes = 0) {
  Tensor bucket(device, DType::f32, {count}, MemoryCategory::gradients);
  copy_from_host(device, bucket, gradients(comm.rank(), count).data());
  const auto exchange =
      make_gradient_exchange(comm, device, wire, {bucket.view(), {}, piece_bytes}, result);
  const Buffer scratch(device, exchange->scratch_bytes(), MemoryCategory::workspace);
  const int64_t own = exchange->own_elements();
  const int64_t begin = std::min(exchange->shard_elements() * comm.rank(), count);
  const bool shard = result == ExchangeResult::shard;
  const View part = {bucket.view().as<float>() + begin, DType::f32, {own}};
  const uint64_t before = device.ledger().allocations();
  exchange->start(device.stream(), scratch.data(), 1.0F / static_cast<float>(comm.size()),
                  shard ? part : View{});
  exchange->advance();
  exchange->finish();
  require(device.ledger().allocations() == before, "an exchange allocates nothing");
  std::vector<float> values = to_host_f32(device, bucket.view());
  for (int64_t i = 0; shard && i < count; ++i) {
    if (i < begin || i >= begin + own) {
      values[static_cast<size_t>(i)] = std::nanf("");
    }
  }
  return values;
}

void check_wire(Communicator& comm, Device& device, const WireCase& c, int64_t count) {
  const int ranks = comm.size();
  const std::vector<float> whole = exchanged(comm, device, c.wire, count, ExchangeResult::whole);
  const std::vector<float> shard = exchanged(comm, device, c.wire, count, ExchangeResult::shard);
  const std::string of = std::string(c.name) + ", " + std::to_string(count) + " elements, " +
                         std::to_string(ranks) + " ranks";
  for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
    const std::vector<float> pieces = exchanged(comm, device, c.wire, count, result, 1);
    const std::vector<float>& at_once = result == ExchangeResult::whole ? whole : shard;
    require(std::memcmp(pieces.data(), at_once.data(), pieces.size() * sizeof(float)) == 0,
            of + ": pieces have the bits of one exchange");
  }
  const bool same = !c.wire.format.is_scaled();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const double mean = exact_sum(ranks, i) / ranks;
    const double amax = group_amax(ranks, i, count);
    const double fp32 = 0x1p-22 * ranks * amax;
    // Two hops round twice.
    const double hops = c.wire.kind == WireKind::two_hop ? 2 : 1;
    const double sum = hops * c.rounding * amax + fp32;
    require(std::abs(whole[at] - mean) <= sum + c.gathered * amax, of + ": " + std::to_string(i));
    if (!std::isnan(shard[at])) {
      require(!same || shard[at] == whole[at], of + ": shards and whole have the same bits");
      require(std::abs(shard[at] - mean) <= sum + (same ? c.gathered * amax : 0), of + ", shard");
    }
  }
  const auto first = comm.all_gather_values(whole[static_cast<size_t>(count / 3)]);
  for (const float other : first) {
    require(other == first.front(), of + ": all ranks have the same bits");
  }
}

}  // namespace

void check_collectives(Communicator& comm) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{100003}}) {
    check_bytes(comm, bytes);
  }
  comm.barrier().wait();
  require(comm.any_rank(comm.rank() == comm.size() - 1), "any_rank of one that says so");
  require(!comm.any_rank(false), "any_rank of none");
  std::vector<int> all;
  for (int rank = 0; rank < comm.size(); ++rank) {
    all.push_back(rank);
  }
  check_group(*comm.duplicate(), all, comm.rank());
  const auto nodes = comm.node_group();
  check_group(*nodes, comm.topology().ranks_of_node(comm.node()), comm.rank());
  if (comm.topology().ranks_per_node() > 0) {
    std::vector<int> peers;
    for (int node = 0; node < comm.nodes(); ++node) {
      peers.push_back(node * comm.local_size() + comm.local_rank());
    }
    check_group(*comm.peer_group(), peers, comm.rank());
  }
}

void check_on_device(Communicator& comm, Device& device, Communicator& host_comm) {
  const auto size = static_cast<size_t>(comm.size());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{4096}, size_t{100003}}) {
    const std::string of = " of " + std::to_string(bytes) + " bytes on the device";
    Bytes sent;
    for (int other = 0; other < comm.size(); ++other) {
      append(sent, message(comm.rank(), other, bytes));
    }
    Bytes gathered(size * bytes);
    Bytes exchanged_bytes(size * bytes);
    host_comm.all_gather(host(), sent.data(), gathered.data(), bytes).wait();
    host_comm.all_to_all(host(), sent.data(), exchanged_bytes.data(), bytes).wait();
    const Buffer from(device, size * bytes, MemoryCategory::workspace);
    const Buffer all(device, size * bytes, MemoryCategory::workspace);
    const Buffer parts(device, size * bytes, MemoryCategory::workspace);
    device.copy_from_host(from.data(), sent.data(), sent.size());
    // Both at once, and waited for from the last to the first.
    Work gather = comm.all_gather(device.stream(), from.data(), all.data(), bytes);
    Work exchange = comm.all_to_all(device.stream(), from.data(), parts.data(), bytes);
    exchange.wait();
    gather.wait();
    Bytes arrived(size * bytes);
    device.copy_to_host(arrived.data(), all.data(), arrived.size());
    require(arrived == gathered, "all_gather" + of);
    device.copy_to_host(arrived.data(), parts.data(), arrived.size());
    require(arrived == exchanged_bytes, "all_to_all" + of);
    comm.exchange(device.stream(), all_pairs(comm, from.data(), all.data(), bytes)).wait();
    device.copy_to_host(arrived.data(), all.data(), arrived.size());
    const size_t own_part = static_cast<size_t>(comm.rank()) * bytes;
    std::copy_n(exchanged_bytes.begin() + static_cast<std::ptrdiff_t>(own_part), bytes,
                arrived.begin() + static_cast<std::ptrdiff_t>(own_part));
    require(arrived == exchanged_bytes, "messages" + of);
    for (int root = 0; root < comm.size(); ++root) {
      comm.broadcast(device.stream(), from.data(), bytes, root).wait();
      Bytes first(bytes);
      device.copy_to_host(first.data(), from.data(), bytes);
      require(first == message(root, 0, bytes), "broadcast from " + std::to_string(root) + of);
      device.copy_from_host(from.data(), sent.data(), sent.size());
    }
  }
}

std::vector<Exchanged> exchange_all(Communicator& comm, Device& device) {
  std::vector<Exchanged> all;
  for (const WireCase& c : wire_cases(comm.topology())) {
    for (const int64_t count : {int64_t{1000}, int64_t{128} * comm.size()}) {
      for (const ExchangeResult result : {ExchangeResult::whole, ExchangeResult::shard}) {
        all.push_back({std::string(c.name) + ", " + std::to_string(count) + " elements" +
                           (result == ExchangeResult::shard ? ", shard" : ""),
                       exchanged(comm, device, c.wire, count, result)});
      }
    }
  }
  return all;
}

void check_reductions(Communicator& comm) {
  const auto device = make_device(DeviceKind::cpu);
  std::vector<float> values = {static_cast<float>(comm.rank() + 1), -8.0F};
  std::vector<float> room(2 * static_cast<size_t>(comm.size()));
  const View view = {values.data(), DType::f32, {2}};
  all_combine(comm, device->stream(), view, ops::Combine::sum, room.data());
  const int n = comm.size();
  const int sum = n * (n + 1) / 2;
  require(values[0] == static_cast<float>(sum) && values[1] == static_cast<float>(-8 * n),
          "all_combine of sums");
  std::vector<double> largest = {comm.rank() == 0 ? std::nan("") : 1.0, -1.0 - comm.rank()};
  std::vector<double> more(2 * static_cast<size_t>(comm.size()));
  all_combine(comm, device->stream(), {largest.data(), DType::f64, {2}}, ops::Combine::max,
              more.data());
  require(std::isnan(largest[0]) && (n == 1 || largest[1] == n), "all_combine of maxima");
  // Share r's three values: r + 1 of every rank, what the last rank has, a NaN of the first one.
  std::vector<float> shares;
  for (int share = 0; share < n; ++share) {
    shares.insert(shares.end(),
                  {static_cast<float>(share + 1), static_cast<float>(-comm.rank() - share),
                   comm.rank() == 0 && share == n - 1 ? std::nanf("") : 0.5F});
  }
  std::vector<float> scratch(shares.size());
  all_combine_shares(comm, device->stream(),
                     {shares.data(), DType::f32, {static_cast<int64_t>(shares.size())}},
                     ops::Combine::max, scratch.data());
  for (int share = 0; share < n && n > 1; ++share) {
    const float* values_of = shares.data() + static_cast<size_t>(3 * share);
    require(values_of[0] == static_cast<float>(share + 1) &&
                values_of[1] == static_cast<float>(n - 1 + share) &&
                std::isnan(values_of[2]) == (share == n - 1),
            "all_combine_shares");
  }
}

void check_exchanges(Communicator& comm, Device& device) {
  for (const WireCase& c : wire_cases(comm.topology())) {
    for (const int64_t count : {int64_t{5}, int64_t{1000}, int64_t{128} * comm.size() * 3}) {
      check_wire(comm, device, c, count);
    }
  }
}

}  // namespace fp8train::test
