// SPDX-License-Identifier: Apache-2.0
#include "comm/validate.hpp"

#include <string>
#include <string_view>

#include "base/check.hpp"
#include "base/element.hpp"
#include "base/words.hpp"
#include "comm/rows/row_layout.hpp"

namespace magi::comm {
namespace {

std::string shape_text(const TensorView& tensor) {
  std::string text = "[";
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(tensor.shape[static_cast<std::size_t>(axis)]);
  }
  return text + "]";
}

std::int64_t num_rows(const TensorView& tensor) { return tensor.rank > 0 ? tensor.shape[0] : 0; }

void check_tensor(const TensorView& tensor, const std::string& name, std::int32_t device) {
  if (tensor.rank < 0 || tensor.rank > kMaxTensorRank || (tensor.rank == 0 && !tensor.empty())) {
    throw invalid(name + ".rank", tensor.rank, "1 to 4");
  }
  dtype_bytes(tensor.dtype);
  for (std::int32_t axis = 0; axis < tensor.rank; ++axis) {
    const std::int64_t extent = tensor.shape[static_cast<std::size_t>(axis)];
    if (extent < 0) throw invalid(name + ".shape", shape_text(tensor), "extents of 0 or more");
  }
  if (tensor.empty() || tensor.device == device) return;
  throw invalid(name + ".device", tensor.device,
                device == kCpuDevice ? "-1 (CPU) for this backend"
                                     : std::to_string(device) + ", as the first tensor");
}

void check_records(std::span<const PeerRows> records, std::string_view name, std::int32_t num_ranks,
                   std::span<const TensorView> tensors, std::string_view tensors_name) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const PeerRows& record = records[i];
    const std::string which = element_name(name, i);
    if (record.peer < 0 || record.peer >= num_ranks) {
      throw invalid(which + ".peer", record.peer, "0 to " + std::to_string(num_ranks - 1));
    }
    if (record.num_rows < 0) throw invalid(which + ".num_rows", record.num_rows, "0 or more");
    if (record.num_rows == 0) continue;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const std::int64_t end = std::int64_t{record.row} + record.num_rows;
      if (record.row >= 0 && end <= num_rows(tensors[t])) continue;
      throw invalid(which, "rows " + std::to_string(record.row) + " to " + std::to_string(end),
                    "rows 0 to " + std::to_string(num_rows(tensors[t])) + " of " +
                        element_name(tensors_name, t));
    }
  }
}

void check_data(std::span<const PeerRows> records, std::span<const TensorView> tensors,
                std::string_view name) {
  if (count_rows(records) == 0) return;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].empty() && row_elements(tensors[t]) > 0) {
      throw invalid(element_name(name, t) + ".data", "null", "a pointer, where rows move");
    }
  }
}

void check_same_rows(const TensorView& input, const TensorView& output, std::size_t idx) {
  if (input.empty() || output.empty()) return;
  bool is_same = input.rank == output.rank;
  for (std::int32_t axis = 1; is_same && axis < input.rank; ++axis) {
    const auto a = static_cast<std::size_t>(axis);
    is_same = input.shape[a] == output.shape[a];
  }
  if (!is_same) {
    throw invalid(
        element_name("outputs", idx) + ".shape", shape_text(output),
        "the extents of " + element_name("inputs", idx) + " beyond axis 0, " + shape_text(input));
  }
}

/// `from` and `to` are the records that go with the inputs and the outputs.
void check_common(const ExchangeArgs& args, bool is_cast) {
  if (args.inputs.empty() || args.inputs.size() > kMaxTensors) {
    throw invalid("inputs", std::to_string(args.inputs.size()) + " tensors", "1 to 16 tensors");
  }
  if (args.outputs.size() != args.inputs.size()) {
    throw invalid("outputs", std::to_string(args.outputs.size()) + " tensors",
                  "as many as inputs, " + std::to_string(args.inputs.size()));
  }
  for (std::size_t t = 0; t < args.inputs.size(); ++t) {
    check_tensor(args.inputs[t], element_name("inputs", t), args.device);
    check_tensor(args.outputs[t], element_name("outputs", t), args.device);
    check_same_rows(args.inputs[t], args.outputs[t], t);
  }
  const auto owned = is_cast ? args.inputs : args.outputs;
  const auto needed = is_cast ? args.outputs : args.inputs;
  const char* owned_name = is_cast ? "inputs" : "outputs";
  const char* needed_name = is_cast ? "outputs" : "inputs";
  check_records(args.rows.owned, "owned", args.num_ranks, owned, owned_name);
  check_records(args.rows.needed, "needed", args.num_ranks, needed, needed_name);
  check_data(args.rows.owned, owned, owned_name);
  check_data(args.rows.needed, needed, needed_name);
  const std::int64_t num_owned = count_rows(args.rows.owned, args.rank);
  const std::int64_t num_needed = count_rows(args.rows.needed, args.rank);
  if (num_owned != num_needed) {
    throw invalid("rows owned for the own rank", num_owned,
                  "as many as it needs from itself, " + std::to_string(num_needed));
  }
}

void check_reduce_types(const TensorView& input, const TensorView& output, std::size_t idx) {
  if (!output.empty() && !is_float(output.dtype)) {
    throw invalid(element_name("outputs", idx) + ".dtype", dtype_name(output.dtype),
                  "a floating-point type");
  }
  if (input.empty() || output.empty() || input.dtype == output.dtype) return;
  if (!is_float(input.dtype) || dtype_bytes(input.dtype) >= dtype_bytes(output.dtype)) {
    throw invalid(element_name("inputs", idx) + ".dtype", dtype_name(input.dtype),
                  std::string(dtype_name(output.dtype)) + " or a narrower floating-point type");
  }
}

void check_lse_pair(const TensorView& out, const TensorView& lse, std::string_view list,
                    std::size_t idx) {
  if (!out.empty() && out.rank != 3) {
    throw invalid(element_name(list, idx) + ".rank", out.rank, "3: [rows, heads, dim]");
  }
  if (lse.empty()) return;
  const std::string name = element_name(list, idx + 1);
  if (lse.rank != 2 || (!out.empty() && lse.shape[1] != out.shape[1])) {
    throw invalid(name + ".shape", shape_text(lse), "[rows, heads] of its out tensor");
  }
  if (lse.dtype != DType::Float32 && lse.dtype != DType::Float64) {
    throw invalid(name + ".dtype", dtype_name(lse.dtype), "float32 or float64");
  }
}

void check_parts(const std::string& name, const void* data, std::span<const std::int64_t> bytes,
                 std::int32_t num_ranks) {
  if (bytes.size() != static_cast<std::size_t>(num_ranks)) {
    throw invalid(name + "_bytes", std::to_string(bytes.size()) + " entries",
                  "one for each of " + std::to_string(num_ranks) + " ranks");
  }
  std::int64_t total = 0;
  for (std::size_t peer = 0; peer < bytes.size(); ++peer) {
    if (bytes[peer] < 0) {
      throw invalid(element_name(name + "_bytes", peer), bytes[peer], "0 or more");
    }
    total += bytes[peer];
  }
  if (total > 0 && data == nullptr) throw invalid(name, "null", "memory");
}

}  // namespace

void check_cast(const ExchangeArgs& args) {
  check_common(args, true);
  for (std::size_t t = 0; t < args.inputs.size(); ++t) {
    const TensorView& input = args.inputs[t];
    const TensorView& output = args.outputs[t];
    if (!input.empty() && !output.empty() && input.dtype != output.dtype) {
      throw invalid(element_name("outputs", t) + ".dtype", dtype_name(output.dtype),
                    std::string(dtype_name(input.dtype)) + ", as its input");
    }
  }
}

void check_reduce(const ExchangeArgs& args, ExchangeKind kind) {
  check_common(args, false);
  for (std::size_t t = 0; t < args.inputs.size(); ++t) {
    check_reduce_types(args.inputs[t], args.outputs[t], t);
  }
  switch (kind) {
    case ExchangeKind::Sum:
      return;
    case ExchangeKind::LseMerge:
      if (args.inputs.size() % 2 != 0) {
        throw invalid("inputs", std::to_string(args.inputs.size()) + " tensors",
                      "{out, lse} pairs");
      }
      for (std::size_t t = 0; t < args.inputs.size(); t += 2) {
        check_lse_pair(args.inputs[t], args.inputs[t + 1], "inputs", t);
        check_lse_pair(args.outputs[t], args.outputs[t + 1], "outputs", t);
      }
      return;
    case ExchangeKind::Cast:
    case ExchangeKind::Other:
      break;
  }
  throw invalid("kind", static_cast<std::int32_t>(kind), "1 (sum) or 2 (lse merge)");
}

void check_bytes(const ByteExchange& exchange, std::int32_t rank, std::int32_t num_ranks) {
  check_parts("send", exchange.send, exchange.send_bytes, num_ranks);
  check_parts("receive", exchange.receive, exchange.receive_bytes, num_ranks);
  const auto own = static_cast<std::size_t>(rank);
  if (exchange.receive_bytes[own] != exchange.send_bytes[own]) {
    throw invalid("receive_bytes[" + std::to_string(rank) + "]", exchange.receive_bytes[own],
                  std::to_string(exchange.send_bytes[own]) + ", what the rank sends to itself");
  }
  const auto kind = static_cast<std::int32_t>(exchange.kind);
  if (kind < 0 || kind > static_cast<std::int32_t>(ExchangeKind::Other)) {
    throw invalid("kind", kind, "0 (cast), 1 (sum), 2 (lse merge) or 3 (other)");
  }
}

}  // namespace magi::comm
