#include "comm/relayed_work.h"

#include "comm/backends/host_copy.h"

namespace fp8train {

RelayedOperation::RelayedOperation(const Communicator::Operation& operation, int ranks, void* send,
                                   void* recv)
    : operation_(operation), messages_(operation.messages.begin(), operation.messages.end()) {
  if (operation.collective != Collective::messages) {
    const bool in_place = operation.collective == Collective::broadcast;
    operation_.send = in_place ? recv : send;
    operation_.recv = recv;
    sent_ = {
        {const_cast<void*>(operation.send), in_place ? recv : send, operation.send_bytes(ranks)}};
    received_ = {{operation.recv, recv, operation.recv_bytes(ranks)}};
    return;
  }
  for (Message& message : messages_) {
    void*& next = message.sends ? send : recv;
    (message.sends ? sent_ : received_).push_back({message.data, next, message.bytes});
    message.data = next;
    next = offset_bytes(next, message.bytes);
  }
  operation_.messages = messages_;
}

}  // namespace fp8train
