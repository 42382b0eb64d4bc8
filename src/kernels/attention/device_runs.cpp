// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/device_runs.hpp"

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"
#include "kernels/attention/combine.hpp"

namespace magi {

/// A ticket, and memory where the caller gives none, that a graph holds, and with them the object.
struct DeviceForward::GraphPart {
  GraphPart(std::shared_ptr<const DeviceForward> prepared, std::int64_t size_bytes)
      : owner(std::move(prepared)),
        memory(static_cast<std::size_t>(size_bytes)),
        ticket(owner->tickets_->take()) {}
  ~GraphPart() { owner->tickets_->put_back(ticket); }
  GraphPart(const GraphPart&) = delete;
  GraphPart& operator=(const GraphPart&) = delete;

  std::shared_ptr<const DeviceForward> owner;
  DeviceBuffer memory;
  unsigned* ticket;
};

DeviceForward::DeviceForward(const AttentionLimits& limits, const ForwardArgs& args)
    : lease_(args.q.device),
      limits_(limits),
      problem_(problem_of(args)),
      tickets_(std::make_unique<StreamCounters>()) {}

void DeviceForward::run(const ForwardArgs& args, const DeviceWorkspace& workspace,
                        void* stream) const {
  check_call(limits_, args, problem_);
  const std::int64_t needed = workspace_bytes();
  if (workspace.data != nullptr && needed > 0) check_workspace(workspace, needed);
  const DeviceScope scope(problem_.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (args.q.num_elements() == 0) return enqueue(args, nullptr, nullptr, cuda_stream);
  if (cudaGraph_t graph = graph_of_capture(cuda_stream); graph != nullptr) {
    return capture(args, workspace, graph, cuda_stream);
  }
  unsigned* ticket = tickets_->of_stream(cuda_stream);
  if (workspace.data != nullptr) return enqueue(args, ticket, workspace.data, cuda_stream);
  const StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, cuda_stream);
  enqueue(args, ticket, own.data(), cuda_stream);
}

void DeviceForward::capture(const ForwardArgs& args, const DeviceWorkspace& workspace,
                            cudaGraph_t graph, cudaStream_t stream) const {
  const bool is_given = workspace.data != nullptr;
  const auto part =
      std::make_shared<const GraphPart>(shared_from_this(), is_given ? 0 : workspace_bytes());
  keep_with_graph(graph, part);
  enqueue(args, part->ticket, is_given ? workspace.data : part->memory.data(), stream);
}

DeviceBackward::DeviceBackward(const AttentionLimits& limits, const BackwardArgs& args)
    : lease_(args.q.device), limits_(limits), problem_(problem_of(args)) {}

void DeviceBackward::run(const BackwardArgs& args, const DeviceWorkspace& workspace,
                         void* stream) const {
  check_call(limits_, args, problem_);
  const std::int64_t needed = workspace_bytes();
  if (workspace.data != nullptr) check_workspace(workspace, needed);
  const DeviceScope scope(problem_.device);
  const auto cuda_stream = static_cast<cudaStream_t>(stream);
  if (cudaGraph_t graph = graph_of_capture(cuda_stream); graph != nullptr) {
    keep_with_graph(graph, shared_from_this());
  }
  if (workspace.data != nullptr) return enqueue(args, workspace.data, cuda_stream);
  const StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, cuda_stream);
  enqueue(args, own.data(), cuda_stream);
}

void keep_with_capture(std::shared_ptr<const void> object, void* stream) {
  cudaGraph_t graph = graph_of_capture(static_cast<cudaStream_t>(stream));
  if (graph != nullptr) keep_with_graph(graph, std::move(object));
}

std::shared_ptr<void> take_device_memory(std::int64_t size_bytes, std::int32_t device,
                                         void* stream) {
  auto buffer = std::make_shared<StreamBuffer>(static_cast<std::size_t>(size_bytes), device,
                                               static_cast<cudaStream_t>(stream));
  return {buffer, buffer->data()};
}

}  // namespace magi
