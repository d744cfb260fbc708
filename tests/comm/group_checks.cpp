#include "comm/group_checks.h"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <string>

#include "comm/backends/backends.h"

namespace fp8train::test {
namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

/// The coordinates of a rank: pipeline, data, context, tensor.
std::array<int, 4> coordinates(const MeshShape& shape, int rank) {
  const int tensor = rank % shape.tensor;
  const int context = rank / shape.tensor % shape.context;
  const int data = rank / (shape.tensor * shape.context) % shape.data;
  return {rank / (shape.tensor * shape.context * shape.data), data, context, tensor};
}

/// The number that tells experts apart.
int within_stage(const MeshShape& shape, int rank) {
  return rank % (shape.data * shape.context * shape.tensor);
}

bool together(const MeshShape& shape, Group group, int a, int b) {
  const auto [pa, da, ca, ta] = coordinates(shape, a);
  const auto [pb, db, cb, tb] = coordinates(shape, b);
  const int ea = within_stage(shape, a);
  const int eb = within_stage(shape, b);
  switch (group) {
    case Group::world:
      return true;
    case Group::tensor:
      return pa == pb && da == db && ca == cb;
    case Group::context:
      return pa == pb && da == db && ta == tb;
    case Group::state:
      return pa == pb && ta == tb;
    case Group::stage:
      return pa == pb;
    case Group::replica:
      return pa == pb && da == db;
    case Group::pipe:
      return da == db && ca == cb && ta == tb;
    case Group::expert:
      return pa == pb && ea / shape.expert == eb / shape.expert;
    case Group::expert_state:
      return pa == pb && ea % shape.expert == eb % shape.expert;
  }
  return false;
}

/// One operation of a program, the same on all ranks. Messages are pairs of positions in a group.
struct Step {
  Group group = Group::world;
  Collective collective = Collective::barrier;
  size_t bytes = 0;
  int root = 0;
  std::vector<std::pair<int, int>> pairs;
};

/// Byte i that world rank `from` gives to world rank `to` in an operation.
uint8_t pattern(uint64_t step, int from, int to, size_t i) {
  return static_cast<uint8_t>(step * 151 + static_cast<uint64_t>(31 * from + 7 * to) + 3 * i);
}

void append(Bytes& all, uint64_t step, int from, int to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    all.push_back(pattern(step, from, to, i));
  }
}

Step random_step(Random& random, const Mesh& mesh) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<uint64_t>(limit));
  };
  Step step;
  step.group = static_cast<Group>(below(static_cast<int>(kGroups)));
  step.collective = static_cast<Collective>(below(6));
  const int size = mesh.size(step.group);
  step.bytes = size_t{1} << below(10);
  step.bytes += static_cast<size_t>(below(3));
  step.root = below(size);
  if (static_cast<int>(step.collective) >= static_cast<int>(Collective::messages)) {
    step.collective = Collective::messages;  // twice as often as others
    for (int i = below(2 * size); i > 0 && size > 1; --i) {
      const int from = below(size);
      step.pairs.emplace_back(from, (from + 1 + below(size - 1)) % size);
    }
  }
  return step;
}

/// The operations of one rank that are under way in one step.
struct Flying {
  Buffer sent, received;
  Bytes expected;
  std::vector<Work> works;
};

/// One rank's side of a program.
class Player {
 public:
  Player(const Mesh& mesh, Device& device, bool in_stream_order)
      : mesh_(&mesh), device_(&device), in_stream_order_(in_stream_order) {}

  const Traffic& counted() const { return counted_; }

  /// `random` is this rank's own: how calls are cut and waited for differs between ranks.
  void start(const Step& step, Random& random) {
    Communicator* const comm = mesh_->group(step.group);
    if (comm == nullptr) {
      return;
    }
    members_ = members_of(mesh_->shape(), step.group, mesh_->world_rank());
    number_ += 1;
    Flying& flying = flying_.emplace_back();
    switch (step.collective) {
      case Collective::all_gather:
      case Collective::all_to_all:
        spread(*comm, step, flying);
        break;
      case Collective::broadcast:
        append(flying.expected, number_, members_[static_cast<size_t>(step.root)], 0, step.bytes);
        flying.received = buffer(comm->rank() == step.root ? flying.expected : Bytes(step.bytes));
        flying.works.push_back(
            comm->broadcast(device_->stream(), flying.received.data(), step.bytes, step.root));
        counted_ += broadcast_traffic(comm->topology(), comm->rank(), step.bytes, step.root);
        break;
      case Collective::barrier:
        flying.works.push_back(comm->barrier());
        break;
      case Collective::messages:
        send(*comm, step, flying, random);
        break;
    }
  }

  /// Waits for all, in any order.
  void finish(Random& random) {
    std::shuffle(flying_.begin(), flying_.end(), random);
    for (Flying& flying : flying_) {
      std::shuffle(flying.works.begin(), flying.works.end(), random);
      for (Work& work : flying.works) {
        work.wait();
      }
      Bytes arrived(flying.expected.size());
      if (!arrived.empty()) {
        device_->copy_to_host(arrived.data(), flying.received.data(), arrived.size());
      }
      if (arrived != flying.expected) {
        throw std::runtime_error("rank " + std::to_string(mesh_->world_rank()) +
                                 " has received other bytes than were sent");
      }
    }
    flying_.clear();
  }

 private:
  Buffer buffer(const Bytes& bytes) {
    Buffer made(*device_, std::max(bytes.size(), size_t{1}), MemoryCategory::workspace);
    device_->copy_from_host(made.data(), bytes.data(), bytes.size());
    return made;
  }

  void spread(Communicator& comm, const Step& step, Flying& flying) {
    const bool gathers = step.collective == Collective::all_gather;
    const int own = mesh_->world_rank();
    Bytes sent;
    for (const int other : members_) {
      if (!gathers || other == own) {
        append(sent, number_, own, gathers ? 0 : other, step.bytes);
      }
      append(flying.expected, number_, other, gathers ? 0 : own, step.bytes);
    }
    flying.sent = buffer(sent);
    flying.received = buffer(Bytes(flying.expected.size()));
    flying.works.push_back(comm.run({.collective = step.collective,
                                     .stream = device_->stream(),
                                     .send = flying.sent.data(),
                                     .recv = flying.received.data(),
                                     .bytes = step.bytes}));
    counted_ += gathers ? all_gather_traffic(comm.topology(), comm.rank(), step.bytes)
                        : all_to_all_traffic(comm.topology(), comm.rank(), step.bytes);
  }

  /// Ranks that no pair names do not call. Those that one does cut their messages into calls.
  void send(Communicator& comm, const Step& step, Flying& flying, Random& random) {
    Bytes sent;
    std::vector<Message> messages;  // data: offsets at first
    size_t count = 0;
    for (const auto& [from, to] : step.pairs) {
      count += 1;
      const size_t bytes = step.bytes + count;
      if (from != comm.rank() && to != comm.rank()) {
        continue;
      }
      const bool sends = from == comm.rank();
      Bytes& all = sends ? sent : flying.expected;
      messages.push_back({.peer = sends ? to : from, .sends = sends, .bytes = bytes});
      append(all, number_ * 100 + count, members_[static_cast<size_t>(from)],
             members_[static_cast<size_t>(to)], bytes);
      if (sends) {
        const auto& nodes = comm.topology();
        const bool near = nodes.node_of(from) == nodes.node_of(to);
        (near ? counted_.within_node : counted_.between_nodes) += bytes;
      }
    }
    flying.sent = buffer(sent);
    flying.received = buffer(Bytes(flying.expected.size()));
    std::byte* to = static_cast<std::byte*>(flying.received.data());
    std::byte* from = static_cast<std::byte*>(flying.sent.data());
    for (Message& message : messages) {
      std::byte*& next = message.sends ? from : to;
      message.data = next;
      next += message.bytes;
    }
    std::span<const Message> left = messages;
    while (!left.empty()) {
      const size_t now = in_stream_order_ ? left.size() : 1 + random() % left.size();
      flying.works.push_back(comm.exchange(device_->stream(), left.first(now)));
      left = left.subspan(now);
    }
  }

  const Mesh* mesh_;
  Device* device_;
  bool in_stream_order_;
  std::vector<int> members_;
  uint64_t number_ = 0;
  std::vector<Flying> flying_;
  Traffic counted_;
};

Traffic play(const Mesh& mesh, Device& device, uint64_t seed, bool in_stream_order) {
  Random random(seed);
  Random own(seed + static_cast<uint64_t>(mesh.world_rank()) + 1);
  Player player(mesh, device, in_stream_order);
  const int steps = 2 + static_cast<int>(random() % 6);
  for (int i = 0; i < steps; ++i) {
    player.start(random_step(random, mesh), own);
    if (random() % 3 == 0) {
      player.finish(own);
    }
  }
  player.finish(own);
  return player.counted();
}

void require_equal(const Traffic& got, const Traffic& want, const char* what) {
  if (got != want) {
    throw std::runtime_error(std::string(what) + ": " + std::to_string(got.within_node) + " and " +
                             std::to_string(got.between_nodes) + " bytes, not " +
                             std::to_string(want.within_node) + " and " +
                             std::to_string(want.between_nodes));
  }
}

/// Whether every receiver is there makes no difference to what a rank sends.
void check_dry_run(const MeshShape& shape, const Communicator& world, uint64_t seed,
                   const Traffic& want) {
  const auto device = make_meta_device({});
  const auto comm = make_dry_run(world.topology(), world.rank());
  const Mesh mesh(shape, world.rank(), comm.get());
  Random random(seed);
  Random own(seed);
  Player player(mesh, *device, false);
  const int steps = 2 + static_cast<int>(random() % 6);
  for (int i = 0; i < steps; ++i) {
    player.start(random_step(random, mesh), own);
    random();
  }
  require_equal(comm->traffic(), want, "a dry run counts");
}

}  // namespace

std::vector<int> members_of(const MeshShape& shape, Group group, int rank) {
  std::vector<int> members;
  for (int other = 0; other < shape.ranks(); ++other) {
    if (together(shape, group, rank, other)) {
      members.push_back(other);
    }
  }
  return members;
}

std::vector<MeshShape> shapes_of(const Topology& ranks) {
  std::vector<MeshShape> shapes;
  const int all = ranks.size();
  for (int pipeline = 1; pipeline <= all; ++pipeline) {
    for (int context = 1; pipeline * context <= all; ++context) {
      for (int tensor = 1; pipeline * context * tensor <= all; ++tensor) {
        for (int expert = 1; expert <= all / pipeline; ++expert) {
          if (all % (pipeline * context * tensor) == 0 && all / pipeline % expert == 0) {
            MeshShape shape = MeshShape::along_data(ranks);
            shape.pipeline = pipeline;
            shape.context = context;
            shape.tensor = tensor;
            shape.expert = expert;
            shape.data = all / (pipeline * context * tensor);
            shapes.push_back(shape);
          }
        }
      }
    }
  }
  return shapes;
}

void check_programs(Communicator& world, Device& device, uint64_t seed,
                    const ProgramCounts& counts) {
  Random random(seed);
  const std::vector<MeshShape> shapes = shapes_of(world.topology());
  for (int mesh_number = 0; mesh_number < counts.meshes; ++mesh_number) {
    const MeshShape& shape = shapes[random() % shapes.size()];
    const Mesh mesh(shape, world.rank(), &world);
    for (int i = 0; i < counts.programs; ++i) {
      const uint64_t of_program = random();
      const Traffic before = world.traffic();
      Traffic want = before;
      want += play(mesh, device, of_program, counts.in_stream_order);
      require_equal(world.traffic(), want, "a program counts");
      if (i == 0) {
        check_dry_run(
            shape, world, of_program,
            {want.within_node - before.within_node, want.between_nodes - before.between_nodes});
      }
    }
  }
}

}  // namespace fp8train::test
