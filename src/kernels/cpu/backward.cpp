// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/backward.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/cpu/attention.hpp"
#include "kernels/cpu/row_sums.hpp"

namespace magi::cpu {
namespace {

/// About what an exponential of the C library costs.
constexpr std::int64_t kExpFlops = 40;

/// Query rows as items, with so many operations per head.
template <typename Real>
Work row_work(const BackwardCall<Real>& call, std::int64_t flops_per_head) {
  const std::int64_t num_rows = call.sizes.rows_q;
  return {num_rows, static_cast<double>(num_rows * call.sizes.heads_q * flops_per_head)};
}

/// Half the spacing of a type's values at 1: what rounding adds to a number, relatively.
template <typename Real>
constexpr double kRounding = 0.5 * std::numeric_limits<Real>::epsilon();

/// Whether rounding of an lse of this size, in base 2, changes weights more than 16 bits do.
template <typename Real>
bool is_large(Real lse) {
  return std::isfinite(lse) && std::abs(lse) >= 0x1p-9 / kRounding<Real>;
}

/// Fills call.lse and call.delta. What reaches row i through lse and through out meets in one
/// number, delta = sum(dout * out) - dlse.
template <typename Real>
void prepare_rows(BackwardCall<Real>& call) {
  const BackwardArgs& args = call.args;
  const std::int64_t dim = call.sizes.dim_v;
  struct Workspace {
    Buffer<Real> out, dout;
  };
  const Workspace prototype{make_buffer<Real>(dim), make_buffer<Real>(dim)};
  run_items(row_work(call, dim), prototype, [&](std::int64_t token, Workspace& w) {
    for (std::int64_t head = 0; head < call.sizes.heads_q; ++head) {
      load_row(args.out, token, head, dim, w.out.data());
      load_row(args.dout, token, head, dim, w.dout.data());
      Real delta = 0;
      for (std::size_t d = 0; d < w.out.size(); ++d) {
        // Zeros are those of a row without keys, whose dout may be NaN.
        if (w.out[d] != 0) delta += w.out[d] * w.dout[d];
      }
      if (!args.dlse.empty()) delta -= element<Real>(args.dlse, token, head);
      const Real lse = element<Real>(args.lse, token, head);
      const auto at = static_cast<std::size_t>(head * call.padded_rows + token);
      const bool is_empty = lse == -std::numeric_limits<Real>::infinity();
      call.lse[at] =
          is_empty ? -lse : static_cast<Real>(static_cast<double>(lse) * std::numbers::log2e);
      call.delta[at] = delta;
    }
  });
}

/// A large lse no longer holds the logarithm of a row's sum: of n equal scores each would get a
/// weight of 1, or none at all. So sums of such rows are made anew, of this call's keys. Where the
/// lse says that other keys have a share in the row, it is lowered by what three roundings (by the
/// forward, by a merge, to base 2) may have added: a weight is at most 1 anyway, and the largest
/// score's does not vanish.
template <typename Real>
void split_large_lse(BackwardCall<Real>& call, Isa isa) {
  if (std::none_of(call.lse.begin(), call.lse.end(), is_large<Real>)) return;
  const BackwardArgs& args = call.args;
  const RowSums<Real> rows = row_sums<Real>({.q = args.q,
                                             .k = args.k,
                                             .v = args.v,
                                             .slices = args.slices,
                                             .sink = args.sink,
                                             .params = args.params},
                                            call.lists, call.sizes, isa);
  for (std::int64_t head = 0; head < call.sizes.heads_q; ++head) {
    for (std::int64_t token = 0; token < call.sizes.rows_q; ++token) {
      const auto at = static_cast<std::size_t>(head * call.padded_rows + token);
      const auto from = static_cast<std::size_t>(head * call.sizes.rows_q + token);
      if (!is_large(call.lse[at])) continue;
      const double rest = std::log2(static_cast<double>(rows.sum[from]));
      const double rounding = 3 * kRounding<Real> * std::abs(static_cast<double>(call.lse[at]));
      const double sum = static_cast<double>(rows.largest[from]) + rest;
      if (std::abs(sum - static_cast<double>(call.lse[at])) <= 2 * rounding) {
        call.lse[at] = rows.largest[from];
        call.lse_rest[at] = static_cast<Real>(rest);
      } else {
        call.lse_rest[at] = static_cast<Real>(-rounding);
      }
    }
  }
}

/// The gradient of one sink logit through one row: a sink is a key whose value is 0.
template <typename Real>
double sink_gradient(const BackwardCall<Real>& call, Real sink, std::int64_t token,
                     std::int64_t head) {
  const auto at = static_cast<std::size_t>(head * call.padded_rows + token);
  const auto lse = static_cast<double>(call.lse[at]);
  if (lse == std::numeric_limits<double>::infinity()) return 0;
  const auto score = static_cast<double>(sink * std::numbers::log2e_v<Real>);
  const double exponent = score - lse - static_cast<double>(call.lse_rest[at]);
  return -std::exp2(std::min(exponent, 0.0)) * static_cast<double>(call.delta[at]);
}

template <typename Real>
void add_gradient(const BackwardCall<Real>& call, Real& to, double gradient) {
  to = static_cast<Real>(call.args.is_accumulating ? static_cast<double>(to) + gradient : gradient);
}

template <typename Real>
void backward_shared_sink(const BackwardCall<Real>& call) {
  struct NoWorkspace {};
  const Work work{call.sizes.heads_q, row_work(call, kExpFlops * call.sizes.num_sinks).flops};
  run_items(work, NoWorkspace{}, [&](std::int64_t head, NoWorkspace&) {
    for (std::int64_t s = 0; s < call.sizes.num_sinks; ++s) {
      const Real sink = element<Real>(call.args.sink, s, head);
      double sum = 0;
      for (std::int64_t token = 0; token < call.sizes.rows_q; ++token) {
        sum += sink_gradient(call, sink, token, head);
      }
      add_gradient(call, element<Real>(call.args.dsink, s, head), sum);
    }
  });
}

template <typename Real>
void backward_row_sink(const BackwardCall<Real>& call) {
  struct NoWorkspace {};
  run_items(
      row_work(call, kExpFlops * call.sizes.num_sinks), NoWorkspace{},
      [&](std::int64_t token, NoWorkspace&) {
        const TensorView sinks = call.args.sink.slice(0, token, token + 1);
        const TensorView dsinks = call.args.dsink.slice(0, token, token + 1);
        for (std::int64_t s = 0; s < call.sizes.num_sinks; ++s) {
          for (std::int64_t head = 0; head < call.sizes.heads_q; ++head) {
            const Real sink =
                static_cast<const Real*>(sinks.data)[s * sinks.stride[1] + head * sinks.stride[2]];
            Real& dsink =
                static_cast<Real*>(dsinks.data)[s * dsinks.stride[1] + head * dsinks.stride[2]];
            add_gradient(call, dsink, sink_gradient(call, sink, token, head));
          }
        }
      });
}

template <typename Real>
void backward(const BackwardArgs& args, const KeyLists* lists, const Sizes& sizes, Isa isa) {
  BackwardCall<Real> call{.args = args,
                          .lists = lists,
                          .sizes = sizes,
                          .kernels = micro_kernels<Real>(isa),
                          .factors = score_factors<Real>(args.params, sizes.dim_qk),
                          .padded_rows = align_up(sizes.rows_q, kBlockCols),
                          .lse = {},
                          .lse_rest = {},
                          .delta = {}};
  call.lse = make_buffer<Real>(sizes.heads_q * call.padded_rows);
  call.lse_rest = call.lse;
  call.delta = call.lse;
  prepare_rows(call);
  split_large_lse(call, isa);
  backward_queries(call);
  if (lists != nullptr) {
    backward_listed_keys(call);
  } else {
    backward_keys(call);
  }
  if (sizes.num_sinks == 0) return;
  if (args.params.sink_layout == SinkLayout::RowSinkHead) {
    backward_row_sink(call);
  } else {
    backward_shared_sink(call);
  }
}

void backward(const BackwardArgs& args, const KeyLists* lists, const Sizes& sizes, Isa isa) {
  if (sizes.real == DType::Float64) {
    backward<double>(args, lists, sizes, isa);
  } else {
    backward<float>(args, lists, sizes, isa);
  }
}

}  // namespace

void attention_backward(const BackwardArgs& args, Isa isa) {
  backward(args, nullptr, check_args(args), isa);
}

void attention_backward(const BackwardArgs& args, const KeyLists& lists, Isa isa) {
  Sizes sizes = check_args(args, &lists);
  sizes.area = count_lists(lists, sizes.rows_k).pairs / sizes.heads_kv;
  backward(args, &lists, sizes, isa);
}

}  // namespace magi::cpu

void magi::attention_backward_cpu(const BackwardArgs& args) {
  cpu::attention_backward(args, cpu::Isa::Best);
}

void magi::attention_backward_cpu(const BackwardArgs& args, const KeyLists& lists) {
  cpu::attention_backward(args, lists, cpu::Isa::Best);
}
