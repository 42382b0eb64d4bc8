// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/device_runs.hpp"

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream_buffer.hpp"
#include "kernels/attention/supplied_device.hpp"

namespace magi {

/// Counters, and memory where the caller gives none, that a graph holds, and with them the object.
struct DeviceForward::GraphPart {
  GraphPart(std::shared_ptr<const DeviceForward> prepared, std::int64_t size_bytes)
      : owner(std::move(prepared)),
        memory(static_cast<std::size_t>(size_bytes)),
        counters(owner->counters_->take()) {}
  ~GraphPart() { owner->counters_->put_back(counters); }
  GraphPart(const GraphPart&) = delete;
  GraphPart& operator=(const GraphPart&) = delete;

  std::shared_ptr<const DeviceForward> owner;
  DeviceBuffer memory;
  unsigned* counters;
};

DeviceForward::DeviceForward(const AttentionLimits& limits, const ForwardArgs& args,
                             const ComingKeys* coming)
    : lease_(args.q.device),
      limits_(limits),
      problem_(problem_of(args)),
      counters_(StreamCounters::shared()) {
  if (coming != nullptr) own_rows_ = coming->own_rows;
}

void DeviceForward::run(const ForwardArgs& args, const DeviceWorkspace& workspace,
                        void* stream) const {
  start(args, workspace, nullptr, static_cast<cudaStream_t>(stream));
}

void DeviceForward::run_coming(const ForwardArgs& args, const DeviceWorkspace& workspace,
                               const KeyArrivals& arrivals, void* stream) const {
  if (!own_rows_) PreparedForward::run_coming(args, workspace, arrivals, stream);
  check_arrivals(arrivals);
  check_own_keys(limits_, arrivals, *own_rows_, args.k, args.v);
  start(args, workspace, &arrivals, static_cast<cudaStream_t>(stream));
}

void DeviceForward::start(const ForwardArgs& args, const DeviceWorkspace& workspace,
                          const KeyArrivals* arrivals, cudaStream_t stream) const {
  check_call(limits_, args, problem_);
  const std::int64_t needed = workspace_bytes();
  if (workspace.data != nullptr && needed > 0) check_workspace(workspace, needed);
  const DeviceScope scope(problem_.device);
  if (args.q.num_elements() == 0) return enqueue(args, nullptr, nullptr, arrivals, stream);
  if (cudaGraph_t graph = graph_of_capture(stream); graph != nullptr) {
    return capture(args, workspace, arrivals, graph, stream);
  }
  unsigned* counters = counters_->of_stream(stream);
  if (workspace.data != nullptr) return enqueue(args, counters, workspace.data, arrivals, stream);
  const StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, stream);
  enqueue(args, counters, own.data(), arrivals, stream);
}

void DeviceForward::capture(const ForwardArgs& args, const DeviceWorkspace& workspace,
                            const KeyArrivals* arrivals, cudaGraph_t graph,
                            cudaStream_t stream) const {
  const bool is_given = workspace.data != nullptr;
  const auto part =
      std::make_shared<const GraphPart>(shared_from_this(), is_given ? 0 : workspace_bytes());
  keep_with_graph(graph, part);
  enqueue(args, part->counters, is_given ? workspace.data : part->memory.data(), arrivals, stream);
}

DeviceBackward::DeviceBackward(const AttentionLimits& limits, const BackwardArgs& args,
                               const ComingKeys* coming)
    : lease_(args.q.device), limits_(limits), problem_(problem_of(args)) {
  if (coming != nullptr) num_parts_ = coming->parts.size();
}

void DeviceBackward::run(const BackwardArgs& args, const DeviceWorkspace& workspace,
                         void* stream) const {
  start(args, workspace, nullptr, static_cast<cudaStream_t>(stream));
}

void DeviceBackward::run_coming(const BackwardArgs& args, const DeviceWorkspace& workspace,
                                const BackwardArrivals& arrivals, void* stream) const {
  if (!num_parts_) PreparedBackward::run_coming(args, workspace, arrivals, stream);
  check_arrivals(arrivals.keys);
  check_own_keys(limits_, arrivals.keys, 0, args.k, args.v);
  check_part_gradients(arrivals.gradients, args, *num_parts_);
  start(args, workspace, &arrivals, static_cast<cudaStream_t>(stream));
}

void DeviceBackward::start(const BackwardArgs& args, const DeviceWorkspace& workspace,
                           const BackwardArrivals* arrivals, cudaStream_t stream) const {
  check_call(limits_, args, problem_);
  const std::int64_t needed = workspace_bytes();
  if (workspace.data != nullptr) check_workspace(workspace, needed);
  const DeviceScope scope(problem_.device);
  if (cudaGraph_t graph = graph_of_capture(stream); graph != nullptr) {
    keep_with_graph(graph, shared_from_this());
  }
  if (workspace.data != nullptr) return enqueue(args, workspace.data, arrivals, stream);
  const StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, stream);
  enqueue(args, own.data(), arrivals, stream);
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
