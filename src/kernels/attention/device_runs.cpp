// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/device_runs.hpp"

#include <utility>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
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
                             const InFlightKeys* coming)
    : lease_(args.q.device),
      limits_(limits),
      problem_(problem_of(args)),
      counters_(StreamCounters::shared()) {
  if (coming != nullptr) own_rows_ = coming->own_rows;
}

void DeviceForward::run(const ForwardArgs& args, const DeviceWorkspace& workspace,
                        void* stream) const {
  auto* queue = static_cast<cudaStream_t>(stream);
  check_call(limits_, args, problem_);
  const DeviceScope scope(problem_.device);
  enqueue(args, take_memory(args, workspace, queue), queue);
}

std::unique_ptr<InFlightForward> DeviceForward::begin_in_flight(const ForwardArgs& args,
                                                                const DeviceWorkspace& workspace,
                                                                const KeyArrivals& arrivals,
                                                                void* stream) const {
  auto* queue = static_cast<cudaStream_t>(stream);
  if (!own_rows_) return PreparedForward::begin_in_flight(args, workspace, arrivals, stream);
  check_arrivals(arrivals);
  check_own_keys(limits_, arrivals, *own_rows_, args.k, args.v);
  check_call(limits_, args, problem_);
  const DeviceScope scope(problem_.device);
  return begin(args, take_memory(args, workspace, queue), arrivals, queue);
}

RunMemory DeviceForward::take_memory(const ForwardArgs& args, const DeviceWorkspace& workspace,
                                     cudaStream_t stream) const {
  const bool is_given = workspace.data != nullptr;
  const std::int64_t needed = workspace_bytes();
  if (is_given && needed > 0) check_workspace(workspace, needed);
  if (args.q.num_elements() == 0) return {};
  if (cudaGraph_t graph = graph_of_capture(stream); graph != nullptr) {
    const auto part = std::make_shared<const GraphPart>(shared_from_this(), is_given ? 0 : needed);
    keep_with_graph(graph, part);
    return {part->counters, is_given ? workspace.data : part->memory.data()};
  }
  unsigned* counters = counters_->of_stream(stream);
  if (is_given) return {counters, workspace.data};
  StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, stream);
  void* data = own.data();
  return {counters, data, std::move(own)};
}

DeviceBackward::DeviceBackward(const AttentionLimits& limits, const BackwardArgs& args,
                               const InFlightKeys* coming)
    : lease_(args.q.device), limits_(limits), problem_(problem_of(args)) {
  if (coming != nullptr) num_parts_ = coming->parts.size();
}

void DeviceBackward::run(const BackwardArgs& args, const DeviceWorkspace& workspace,
                         void* stream) const {
  auto* queue = static_cast<cudaStream_t>(stream);
  check_call(limits_, args, problem_);
  const DeviceScope scope(problem_.device);
  enqueue(args, take_memory(workspace, queue), queue);
}

std::unique_ptr<InFlightBackward> DeviceBackward::begin_in_flight(const BackwardArgs& args,
                                                                  const DeviceWorkspace& workspace,
                                                                  const BackwardArrivals& arrivals,
                                                                  void* stream) const {
  auto* queue = static_cast<cudaStream_t>(stream);
  if (!num_parts_) return PreparedBackward::begin_in_flight(args, workspace, arrivals, stream);
  check_arrivals(arrivals.keys);
  check_own_keys(limits_, arrivals.keys, 0, args.k, args.v);
  check_part_gradients(arrivals.gradients, args, *num_parts_);
  check_call(limits_, args, problem_);
  const DeviceScope scope(problem_.device);
  return begin(args, take_memory(workspace, queue), arrivals, queue);
}

RunMemory DeviceBackward::take_memory(const DeviceWorkspace& workspace, cudaStream_t stream) const {
  const std::int64_t needed = workspace_bytes();
  const bool is_given = workspace.data != nullptr;
  if (is_given) check_workspace(workspace, needed);
  if (cudaGraph_t graph = graph_of_capture(stream); graph != nullptr) {
    keep_with_graph(graph, shared_from_this());
  }
  if (is_given) return {.workspace = workspace.data};
  StreamBuffer own(static_cast<std::size_t>(needed), problem_.device, stream);
  void* data = own.data();
  return {.workspace = data, .own = std::move(own)};
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
