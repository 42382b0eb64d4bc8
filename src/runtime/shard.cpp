// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/bounds.hpp"
#include "base/element.hpp"
#include "comm/rows/abort_group.hpp"
#include "comm/rows/call_options.hpp"
#include "comm/rows/row_exchanger.hpp"
#include "comm/rows/row_layout.hpp"
#include "kernels/check/check_tensor.hpp"
#include "magi/runtime.hpp"
#include "runtime/shard_map.hpp"
#include "runtime/tensors/check_device.hpp"
#include "runtime/tensors/elements.hpp"

namespace magi {
namespace {

void check_shape_of(const char* name, const TensorView& tensor, const TensorView& expected) {
  const auto shape = [](const TensorView& view) {
    return std::span(view.shape).first(static_cast<std::size_t>(view.rank));
  };
  if (std::ranges::equal(shape(tensor), shape(expected))) return;
  throw invalid(std::string(name) + ".shape", shape_text(shape(tensor)),
                shape_text(shape(expected)));
}

/// A sharded tensor beside the whole one, on its device, checked against a placement.
void check_pair(const Placement& placement, std::int32_t rank, const TensorView& global,
                const TensorView& local) {
  require_between("rank", rank, 0, placement.num_ranks - 1);
  check_tensor_on(global.device, "global", global);
  check_tensor_on(global.device, "local", local);
  require_between("global.shape[0]", global.shape[0], 0, placement.num_rows);
  if (local.dtype != global.dtype) {
    throw invalid("local.dtype", dtype_name(local.dtype), dtype_name(global.dtype));
  }
  TensorView expected = global;
  expected.shape[0] = placement.rows_of(rank);
  check_shape_of("local", local, expected);
}

/// Integers take whole numbers within their range only.
void check_pad_value(double value, DType dtype) {
  if (is_float(dtype)) return;
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

void check_gapless(const char* name, const TensorView& tensor) {
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(tensor.rank); axis-- > 0;) {
    if (tensor.shape[axis] > 1 && tensor.stride[axis] != stride) {
      throw invalid(std::string(name) + ".stride[" + std::to_string(axis) + "]",
                    tensor.stride[axis],
                    std::to_string(stride) + " (on a GPU shards are row-major without gaps)");
    }
    stride *= tensor.shape[axis];
  }
}

struct ShardPair {
  const char* first_name;
  const TensorView& first;
  const char* second_name;
  const TensorView& second;
};

/// Refuses tensors on a GPU unless both are row-major without gaps on one of this machine,
/// `communicator`, where there is one, moves device memory and `stream` is not being captured.
void check_device_shards(const ShardPair& pair, const Communicator* communicator, void* stream) {
  if (pair.first.device == kCpuDevice) return;
  check_device(pair.first_name, pair.first.device);
  check_gapless(pair.first_name, pair.first);
  check_gapless(pair.second_name, pair.second);
  // The tables of these calls live no longer than the calls.
  check_not_captured(stream, "dispatch, undispatch and roll");
  if (communicator == nullptr || communicator->num_ranks() == 1) return;
  if (communicator->has_device_exchange()) return;
  throw invalid("communicator", std::string("a ") + communicator->backend() + " group",
                "for tensors on a GPU a group that moves device memory");
}

/// The runs as moves from global rows to local ones, or back.
std::vector<LocalMove> moves_of(std::span<const ShardRun> runs, bool is_to_local) {
  std::vector<LocalMove> moves;
  for (const ShardRun& run : runs) {
    moves.push_back(is_to_local ? LocalMove{run.global_row, run.local_row, run.num_rows}
                                : LocalMove{run.local_row, run.global_row, run.num_rows});
  }
  return moves;
}

/// A table of rows that stay on `rank`, and of those of an exchange.
comm::RowTable row_table(std::span<const LocalMove> moves, const Placement& placement,
                         std::int32_t rank, RowExchange rows = {}) {
  for (const LocalMove& move : moves) {
    rows.owned.push_back({.peer = rank, .row = move.source_row, .num_rows = move.num_rows});
    rows.needed.push_back({.peer = rank, .row = move.target_row, .num_rows = move.num_rows});
  }
  return {rows, rank, placement.num_ranks, comm::TableLife::OneMove};
}

/// Starts and completes a move of rows over the group.
void move_rows(Communicator& communicator, const comm::RowTable& table, const comm::RowMove& move,
               void* stream) {
  communicator.row_exchanger(move.from[0].device).start(table, move, stream)->await(stream);
}

std::int64_t row_length(const TensorView& tensor) {
  return static_cast<std::int64_t>(comm::row_elements(tensor));
}

/// The values that ranks compare of a call, so that none takes rows of another placement or call
/// for its own.
ExchangeTag tag_of(const Placement& placement, const comm::RowOptions& options) {
  return {.plan_digest = placement_digest(placement), .options = comm::pack_options(options)};
}

std::int32_t count_rows(std::span<const ShardRun> runs) {
  return runs.empty() ? 0 : runs.back().local_row + runs.back().num_rows;
}

void check_floating(DType dtype) {
  if (!is_float(dtype)) throw invalid("global.dtype", dtype_name(dtype), "a floating-point type");
}

}  // namespace

void dispatch(const TensorView& global, const Placement& placement, std::int32_t rank,
              const TensorView& local, double pad_value, void* stream) {
  check_pair(placement, rank, global, local);
  check_pad_value(pad_value, local.dtype);
  const auto runs = shard_runs(placement, rank, static_cast<std::int32_t>(global.shape[0]));
  check_device_shards({"global", global, "local", local}, nullptr, stream);
  comm::move_own_rows(row_table(moves_of(runs, true), placement, rank),
                      {.from = {&global, 1}, .to = {&local, 1}}, stream);
  fill_elements(local.slice(0, count_rows(runs), local.shape[0]), pad_value, stream);
}

void undispatch(const TensorView& local, const Placement& placement, Communicator& communicator,
                const TensorView& global, void* stream) {
  check_group(placement, communicator);
  check_pair(placement, communicator.rank(), global, local);
  const std::int32_t rank = communicator.rank();
  const auto num_rows = static_cast<std::int32_t>(global.shape[0]);
  check_device_shards({"global", global, "local", local}, &communicator, stream);
  abort_group_on_error(communicator, [&] {
    const auto own = moves_of(shard_runs(placement, rank, num_rows), false);
    move_rows(communicator,
              row_table(own, placement, rank, gather_exchange(placement, rank, num_rows)),
              {.from = {&local, 1},
               .to = {&global, 1},
               .tag = tag_of(placement, {.num_rows = num_rows, .row_length = row_length(global)})},
              stream);
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
      check_device_shards({"global", global_gradient, "local", local_gradient}, &communicator,
                          stream);
      return abort_group_on_error(communicator, [&] {
        // The own part first: the others' are added to it in rank order and rounded once.
        dispatch(global_gradient, placement, communicator.rank(), local_gradient, 0.0, stream);
        const auto num_rows = static_cast<std::int32_t>(global_gradient.shape[0]);
        const RowExchange rows = gather_exchange(placement, communicator.rank(), num_rows);
        move_rows(communicator, row_table({}, placement, communicator.rank(), rows),
                  {.kind = ExchangeKind::Sum,
                   .from = {&global_gradient, 1},
                   .to = {&local_gradient, 1},
                   .tag = tag_of(placement, {.function = comm::RowFunction::SumOfRows,
                                             .num_rows = num_rows,
                                             .row_length = row_length(global_gradient)})},
                  stream);
      });
  }
  throw invalid("mode", static_cast<std::int32_t>(mode), "0 (replicated) or 1 (partial)");
}

void roll(const TensorView& local, const Placement& placement, std::int32_t num_valid_rows,
          std::int64_t shift, Communicator& communicator, const TensorView& out, void* stream) {
  check_group(placement, communicator);
  check_tensor_on(local.device, "local", local);
  require_between("num_valid_rows", num_valid_rows, 0, placement.num_rows);
  if (local.shape[0] != placement.rows_of(communicator.rank())) {
    throw invalid("local.shape[0]", local.shape[0],
                  std::to_string(placement.rows_of(communicator.rank())));
  }
  check_tensor_on(local.device, "out", out);
  check_shape_of("out", out, local);
  if (out.dtype != local.dtype) {
    throw invalid("out.dtype", dtype_name(out.dtype), dtype_name(local.dtype));
  }
  if (out.data == local.data && out.num_elements() > 0) {
    throw invalid("out.data", "local.data", "memory that does not overlap local's");
  }
  check_device_shards({"local", local, "out", out}, &communicator, stream);
  abort_group_on_error(communicator, [&] {
    const std::int32_t rank = communicator.rank();
    const RollTable table = roll_table(placement, rank, num_valid_rows, shift);
    // Shifts that lead to the same rows are equal.
    const std::int64_t least = num_valid_rows == 0 ? 0 : shift % num_valid_rows;
    const comm::RowOptions options{.function = comm::RowFunction::Roll,
                                   .num_rows = num_valid_rows,
                                   .row_length = row_length(local),
                                   .shift = least < 0 ? least + num_valid_rows : least};
    move_rows(communicator, row_table(table.moves, placement, rank, table.exchange),
              {.from = {&local, 1}, .to = {&out, 1}, .tag = tag_of(placement, options)}, stream);
  });
}

}  // namespace magi
