// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "magi/runtime.hpp"
#include "runtime/abort_group.hpp"
#include "runtime/buffer.hpp"
#include "runtime/check_tensor.hpp"
#include "runtime/device_shard.hpp"
#include "runtime/elements.hpp"
#include "runtime/shard_map.hpp"

namespace magi {
namespace {

/// A sharded tensor beside the whole one, on its device, checked against a placement.
void check_pair(const Placement& placement, std::int32_t rank, const TensorView& global,
                const TensorView& local) {
  if (rank < 0 || rank >= placement.num_ranks) {
    throw invalid("rank", rank, "0 to " + std::to_string(placement.num_ranks - 1));
  }
  check_tensor_on(global.device, "global", global);
  check_tensor_on(global.device, "local", local);
  if (global.shape[0] > placement.num_rows) {
    throw invalid("global.shape[0]", global.shape[0], "0 to " + std::to_string(placement.num_rows));
  }
  if (local.dtype != global.dtype) {
    throw invalid("local.dtype", dtype_name(local.dtype), dtype_name(global.dtype));
  }
  std::array<std::int64_t, kMaxTensorRank> expected = global.shape;
  expected[0] = placement.rows_of(rank);
  const auto axes = static_cast<std::size_t>(global.rank);
  const std::span<const std::int64_t> seen(local.shape.data(),
                                           static_cast<std::size_t>(local.rank));
  if (!std::ranges::equal(seen, std::span(expected).first(axes))) {
    throw invalid("local.shape", shape_text(seen), shape_text(std::span(expected).first(axes)));
  }
}

/// Integers take whole numbers within their range only.
void check_pad_value(double value, DType dtype) {
  if (is_floating(dtype)) return;
  const double limit = dtype == DType::Int32 ? 0x1p31 : 0x1p63;
  if (std::trunc(value) == value && value >= -limit && value < limit) return;
  throw invalid("pad_value", value, std::string("a value of type ") + dtype_name(dtype));
}

void check_group(const Placement& placement, const Communicator& communicator) {
  if (communicator.num_ranks() != placement.num_ranks) {
    throw invalid("communicator.num_ranks", communicator.num_ranks(),
                  std::to_string(placement.num_ranks) + " (the placement's)");
  }
}

TensorView rows_of(const TensorView& tensor, std::int32_t begin, std::int32_t num_rows) {
  return tensor.slice(0, begin, begin + num_rows);
}

/// A row-major array of `shape`'s extents with another data type.
TensorView like(Buffer& buffer, const TensorView& shape, DType dtype) {
  TensorView view = shape;
  view.dtype = dtype;
  view.device = kCpuDevice;
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(view.rank); axis-- > 0;) {
    view.stride[axis] = stride;
    stride *= view.shape[axis];
  }
  view.data = buffer.reserve(static_cast<std::size_t>(stride) * dtype_bytes(dtype));
  return view;
}

/// `tensor` itself, or a packed copy where a communicator could not read it in place.
TensorView exchangeable_input(Buffer& buffer, const TensorView& tensor) {
  if (!tensor.empty() && is_exchangeable(tensor)) return tensor;
  const TensorView packed = like(buffer, tensor, tensor.dtype);
  copy_elements(tensor, packed);
  return packed;
}

/// Starts and completes the cast of `input` into `output`, which may have any strides.
void cast_sync(const TensorView& input, const TensorView& output, const RowExchange& exchange,
               Communicator& communicator) {
  Buffer input_buffer;
  Buffer output_buffer;
  const TensorView source = exchangeable_input(input_buffer, input);
  const bool is_direct = !output.empty() && is_exchangeable(output);
  const TensorView target = is_direct ? output : like(output_buffer, output, output.dtype);
  communicator.group_cast({&source, 1}, {&target, 1}, exchange, {})->wait_sync();
  if (is_direct) return;
  for (const PeerRows& rows : exchange.needed) {
    copy_elements(rows_of(target, rows.row, rows.num_rows),
                  rows_of(output, rows.row, rows.num_rows));
  }
}

void copy_runs(std::span<const ShardRun> runs, const TensorView& global, const TensorView& local,
               bool is_to_local) {
  for (const ShardRun& run : runs) {
    const TensorView outer = rows_of(global, run.global_row, run.num_rows);
    const TensorView inner = rows_of(local, run.local_row, run.num_rows);
    copy_elements(is_to_local ? outer : inner, is_to_local ? inner : outer);
  }
}

bool is_on_device(const TensorView& tensor) { return tensor.device != kCpuDevice; }

/// The runs as moves from local rows to global ones, or back.
std::vector<LocalMove> moves_of(std::span<const ShardRun> runs, bool is_to_local) {
  std::vector<LocalMove> moves;
  for (const ShardRun& run : runs) {
    moves.push_back(is_to_local ? LocalMove{run.global_row, run.local_row, run.num_rows}
                                : LocalMove{run.local_row, run.global_row, run.num_rows});
  }
  return moves;
}

std::int32_t count_rows(std::span<const ShardRun> runs) {
  return runs.empty() ? 0 : runs.back().local_row + runs.back().num_rows;
}

void check_floating(DType dtype) {
  if (!is_floating(dtype))
    throw invalid("global.dtype", dtype_name(dtype), "a floating-point type");
}

void reduce_scatter_sync(const TensorView& global_gradient, const Placement& placement,
                         Communicator& communicator, const TensorView& local_gradient) {
  const auto num_rows = static_cast<std::int32_t>(global_gradient.shape[0]);
  const auto runs = shard_runs(placement, communicator.rank(), num_rows);
  Buffer input_buffer;
  Buffer sum_buffer;
  const TensorView partial = exchangeable_input(input_buffer, global_gradient);
  const TensorView sum = like(sum_buffer, local_gradient, accumulator_type(local_gradient.dtype));
  fill_elements(sum, 0.0);
  for (const ShardRun& run : runs) {
    convert_elements(rows_of(global_gradient, run.global_row, run.num_rows),
                     rows_of(sum, run.local_row, run.num_rows));
  }
  const RowExchange exchange = gather_exchange(placement, communicator.rank(), num_rows);
  communicator.group_reduce({&partial, 1}, {&sum, 1}, exchange, ExchangeKind::Sum, {})->wait_sync();
  convert_elements(sum, local_gradient);
}

void sum_on_device(const TensorView& global_gradient, const Placement& placement,
                   Communicator& communicator, const TensorView& local_gradient, void* stream) {
  check_device_shards("global", global_gradient, "local", local_gradient, &communicator);
  const auto num_rows = static_cast<std::int32_t>(global_gradient.shape[0]);
  abort_group_on_error(communicator, [&] {
    const auto own = moves_of(shard_runs(placement, communicator.rank(), num_rows), true);
    const RowExchange exchange = gather_exchange(placement, communicator.rank(), num_rows);
    sum_device_rows({global_gradient, local_gradient, own, exchange, communicator}, stream);
  });
}

}  // namespace

void dispatch(const TensorView& global, const Placement& placement, std::int32_t rank,
              const TensorView& local, double pad_value, void* stream) {
  check_pair(placement, rank, global, local);
  check_pad_value(pad_value, local.dtype);
  const auto runs = shard_runs(placement, rank, static_cast<std::int32_t>(global.shape[0]));
  const TensorView padding = local.slice(0, count_rows(runs), local.shape[0]);
  if (is_on_device(global)) {
    check_device_shards("global", global, "local", local, nullptr);
    move_device_rows({.source = global, .target = local, .moves = moves_of(runs, true)}, stream);
    return fill_device_elements(padding, pad_value, stream);
  }
  copy_runs(runs, global, local, true);
  fill_elements(padding, pad_value);
}

void undispatch(const TensorView& local, const Placement& placement, Communicator& communicator,
                const TensorView& global, void* stream) {
  check_group(placement, communicator);
  check_pair(placement, communicator.rank(), global, local);
  const std::int32_t rank = communicator.rank();
  const auto num_rows = static_cast<std::int32_t>(global.shape[0]);
  if (is_on_device(global)) {
    check_device_shards("global", global, "local", local, &communicator);
    return abort_group_on_error(communicator, [&] {
      const auto moves = moves_of(shard_runs(placement, rank, num_rows), false);
      const RowExchange exchange = gather_exchange(placement, rank, num_rows);
      move_device_rows({local, global, moves, &exchange, &communicator}, stream);
    });
  }
  abort_group_on_error(communicator, [&] {
    copy_runs(shard_runs(placement, rank, num_rows), global, local, false);
    cast_sync(local, global, gather_exchange(placement, rank, num_rows), communicator);
  });
}

void undispatch_backward(const TensorView& global_gradient, const Placement& placement,
                         Communicator& communicator, UndispatchGradient mode,
                         const TensorView& local_gradient, void* stream) {
  check_group(placement, communicator);
  check_pair(placement, communicator.rank(), global_gradient, local_gradient);
  switch (mode) {
    case UndispatchGradient::Replicated:
      return dispatch(global_gradient, placement, communicator.rank(), local_gradient, 0.0, stream);
    case UndispatchGradient::Partial:
      check_floating(local_gradient.dtype);
      if (is_on_device(global_gradient)) {
        return sum_on_device(global_gradient, placement, communicator, local_gradient, stream);
      }
      return abort_group_on_error(communicator, [&] {
        reduce_scatter_sync(global_gradient, placement, communicator, local_gradient);
      });
  }
  throw invalid("mode", static_cast<std::int32_t>(mode), "0 (replicated) or 1 (partial)");
}

void roll(const TensorView& local, const Placement& placement, std::int32_t num_valid_rows,
          std::int64_t shift, Communicator& communicator, const TensorView& out, void* stream) {
  check_group(placement, communicator);
  check_tensor_on(local.device, "local", local);
  if (num_valid_rows < 0 || num_valid_rows > placement.num_rows) {
    throw invalid("num_valid_rows", num_valid_rows, "0 to " + std::to_string(placement.num_rows));
  }
  if (local.shape[0] != placement.rows_of(communicator.rank())) {
    throw invalid("local.shape[0]", local.shape[0],
                  std::to_string(placement.rows_of(communicator.rank())));
  }
  check_tensor_on(local.device, "out", out);
  const auto shape = [](const TensorView& tensor) {
    return std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank));
  };
  if (!std::ranges::equal(shape(out), shape(local))) {
    throw invalid("out.shape", shape_text(shape(out)), shape_text(shape(local)));
  }
  if (out.dtype != local.dtype) {
    throw invalid("out.dtype", dtype_name(out.dtype), dtype_name(local.dtype));
  }
  if (out.data == local.data && out.num_elements() > 0) {
    throw invalid("out.data", "local.data", "memory that does not overlap local's");
  }
  if (is_on_device(local)) check_device_shards("local", local, "out", out, &communicator);
  abort_group_on_error(communicator, [&] {
    const RollTable table = roll_table(placement, communicator.rank(), num_valid_rows, shift);
    if (is_on_device(local)) {
      return move_device_rows({local, out, table.moves, &table.exchange, &communicator}, stream);
    }
    for (const LocalMove& move : table.moves) {
      copy_elements(rows_of(local, move.source_row, move.num_rows),
                    rows_of(out, move.target_row, move.num_rows));
    }
    cast_sync(local, out, table.exchange, communicator);
  });
}

}  // namespace magi
