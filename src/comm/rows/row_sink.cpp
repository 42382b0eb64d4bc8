// SPDX-License-Identifier: Apache-2.0
#include "comm/rows/row_sink.hpp"

#include <deque>

#include "base/lse_merge.hpp"
#include "comm/rows/accumulator.hpp"
#include "comm/rows/row_layout.hpp"

namespace magi::comm {
namespace {

/// The state that both reductions share: accumulators per output, over the rows touched.
class ReduceSink : public RowSink {
 public:
  ReduceSink(std::span<const TensorView> outputs, std::span<const SumTask> sums) : touched_(sums) {
    for (const TensorView& output : outputs) {
      accumulators_.emplace_back(output, touched_).load();
    }
  }
  void finish() override {
    for (Accumulator& accumulator : accumulators_) accumulator.store();
  }

 protected:
  std::deque<Accumulator>& accumulators() { return accumulators_; }

 private:
  TouchedRows touched_;
  std::deque<Accumulator> accumulators_;
};

class SumSink final : public ReduceSink {
 public:
  SumSink(std::span<const TensorView> outputs, std::span<const SumTask> sums)
      : ReduceSink(outputs, sums) {
    for (const Accumulator& accumulator : accumulators()) {
      const RowLayout layout(std::span(&accumulator.view(), 1));
      rows_.push_back(layout.tensors()[0]);
    }
  }

  void put(std::uint64_t wire_types, Rows rows, const std::byte* wire) override {
    for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
      for (std::size_t t = 0; t < rows_.size(); ++t) {
        const DType type = wire_type(wire_types, t);
        std::byte* target = rows_[t].row(accumulators()[t].row_idx(row));
        const bool is_float64 = accumulators()[t].is_float64();
        for (const std::int64_t offset : rows_[t].run_offsets) {
          if (is_float64) {
            add(reinterpret_cast<double*>(target) + offset, wire, type, rows_[t].run_elements);
          } else {
            add(reinterpret_cast<float*>(target) + offset, wire, type, rows_[t].run_elements);
          }
          wire += rows_[t].run_elements * dtype_bytes(type);
        }
      }
    }
  }

 private:
  std::vector<TensorRows> rows_;
};

/// One element of a tensor, as a number.
double read_float(const TensorView& tensor, std::int64_t offset) {
  return tensor.dtype == DType::Float64 ? static_cast<const double*>(tensor.data)[offset]
                                        : static_cast<const float*>(tensor.data)[offset];
}

void write_float(const TensorView& tensor, std::int64_t offset, double value) {
  if (tensor.dtype == DType::Float64) {
    static_cast<double*>(tensor.data)[offset] = value;
  } else {
    static_cast<float*>(tensor.data)[offset] = static_cast<float>(value);
  }
}

class LseSink final : public ReduceSink {
 public:
  using ReduceSink::ReduceSink;

  void put(std::uint64_t wire_types, Rows rows, const std::byte* wire) override {
    for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
      for (std::size_t t = 0; t + 1 < accumulators().size(); t += 2) {
        wire = merge_row(t, row, wire, wire_types);
      }
    }
  }

 private:
  /// Merges one row of pair (t, t + 1); returns where the next pair's data starts.
  const std::byte* merge_row(std::size_t t, std::int64_t row, const std::byte* wire,
                             std::uint64_t wire_types) {
    const TensorView& out = accumulators()[t].view();
    const TensorView& lse = accumulators()[t + 1].view();
    const DType out_type = wire_type(wire_types, t);
    const DType lse_type = wire_type(wire_types, t + 1);
    const auto num_heads = static_cast<std::size_t>(out.shape[1]);
    const auto dim = static_cast<std::size_t>(out.shape[2]);
    const std::size_t head_bytes = dim * dtype_bytes(out_type);
    const std::byte* wire_lse = wire + num_heads * head_bytes;
    for (std::size_t head = 0; head < num_heads; ++head) {
      const auto h = static_cast<std::int64_t>(head);
      const std::int64_t lse_at =
          accumulators()[t + 1].row_idx(row) * lse.stride[0] + h * lse.stride[1];
      const std::int64_t out_at =
          accumulators()[t].row_idx(row) * out.stride[0] + h * out.stride[1];
      const LseWeights<double> weights =
          merge_lse(read_float(lse, lse_at), load_element(wire_lse, lse_type, head));
      merge_head(out, out_at, wire + head * head_bytes, out_type, weights);
      write_float(lse, lse_at, weights.lse);
    }
    return wire_lse + num_heads * dtype_bytes(lse_type);
  }

  static void merge_head(const TensorView& out, std::int64_t out_at, const std::byte* wire,
                         DType wire_type, const LseWeights<double>& weights) {
    const WeightedRun run{.num_elements = static_cast<std::size_t>(out.shape[2]),
                          .stride = out.stride[2],
                          .scale_target = weights.own,
                          .scale_wire = weights.partial};
    if (out.dtype == DType::Float64) {
      combine(static_cast<double*>(out.data) + out_at, wire, wire_type, run);
    } else {
      combine(static_cast<float*>(out.data) + out_at, wire, wire_type, run);
    }
  }
};

}  // namespace

std::unique_ptr<RowSink> make_reduce_sink(std::span<const TensorView> outputs,
                                          std::span<const SumTask> sums, ExchangeKind kind) {
  if (kind == ExchangeKind::LseMerge) return std::make_unique<LseSink>(outputs, sums);
  return std::make_unique<SumSink>(outputs, sums);
}

}  // namespace magi::comm
