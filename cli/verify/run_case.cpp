// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <memory>

#include "kernels/cpu/attention.hpp"
#include "magi/runtime.hpp"
#include "verify/checks.hpp"

namespace magi::cli {
namespace {

/// A global array in the type of the case.
template <typename Real>
HostTensor<Real> to_tensor(const std::vector<double>& values,
                           std::initializer_list<std::int64_t> shape) {
  HostTensor<Real> tensor(shape);
  std::transform(values.begin(), values.end(), tensor.elements().begin(),
                 [](double value) { return static_cast<Real>(value); });
  return tensor;
}

/// Runs one case in float32 or float64. Every rank works on its shard; what is gathered is kept by
/// rank 0.
template <typename Real>
class CaseRun {
 public:
  CaseRun(const VerifyCase& verify_case, const Plan& plan, const CaseData& data)
      : case_(verify_case),
        data_(data),
        plan_(std::make_shared<const Plan>(plan)),
        is_sink_per_row_(verify_case.params.sink_layout == SinkLayout::RowSinkHead) {
    const auto ranks = static_cast<std::size_t>(plan.config.num_ranks);
    results_.forward_bytes.resize(ranks * ranks);
    results_.backward_bytes.resize(ranks * ranks);
    dsink_parts_.resize(ranks);
  }

  CaseResults run() {
    const CommOptions options{.deadline = std::chrono::seconds(60)};
    run_ranks(
        plan_->config.num_ranks, [this](Communicator& communicator) { run_rank(communicator); },
        options);
    if (!is_sink_per_row_) {
      // Shared sinks: each rank has the part of its rows.
      results_.dsink.assign(data_.sink.size(), 0.0);
      for (const std::vector<double>& part : dsink_parts_) {
        for (std::size_t i = 0; i < part.size(); ++i) results_.dsink[i] += part[i];
      }
    }
    return results_;
  }

 private:
  /// NOTE: what the case has is given on every rank, on those without rows too.
  struct Shard {
    HostTensor<Real> q, k, v, dout, sink, dlse;
    HostTensor<Real> out, lse, max_logits, dq, dk, dv, dsink;
  };

  Shard take_shard(std::int32_t rank) const {
    const PlanConfig& c = plan_->config;
    const std::int64_t rows_q = plan_->placement_q.rows_of(rank);
    const std::int64_t rows_k = plan_->placement_k.rows_of(rank);
    const std::int64_t sinks = case_.num_sinks;
    Shard shard;
    const auto take = [rank](const std::vector<double>& values, const Placement& placement,
                             std::int64_t rows, std::int64_t heads, std::int64_t dim) {
      const auto all = static_cast<std::int64_t>(values.size()) / (heads * dim);
      HostTensor<Real> local({rows, heads, dim});
      dispatch(to_tensor<Real>(values, {all, heads, dim}), placement, rank, local);
      return local;
    };
    shard.q = take(data_.q, plan_->placement_q, rows_q, c.num_heads_q, c.head_dim_qk);
    shard.k = take(data_.k, plan_->placement_k, rows_k, c.num_heads_kv, c.head_dim_qk);
    shard.v = take(data_.v, plan_->placement_k, rows_k, c.num_heads_kv, c.head_dim_v);
    shard.dout = take(data_.dout, plan_->placement_q, rows_q, c.num_heads_q, c.head_dim_v);
    if (case_.has_dlse) {
      shard.dlse = HostTensor<Real>({rows_q, c.num_heads_q});
      dispatch(to_tensor<Real>(data_.dlse, {case_.mask.rows_q, c.num_heads_q}), plan_->placement_q,
               rank, shard.dlse);
    }
    if (sinks > 0 && is_sink_per_row_) {
      shard.sink = take(data_.sink, plan_->placement_q, rows_q, sinks, c.num_heads_q);
      shard.dsink = HostTensor<Real>({rows_q, sinks, c.num_heads_q});
    } else if (sinks > 0) {
      shard.sink = to_tensor<Real>(data_.sink, {sinks, c.num_heads_q});
      shard.dsink = HostTensor<Real>({sinks, c.num_heads_q});
    }
    shard.out = HostTensor<Real>({rows_q, c.num_heads_q, c.head_dim_v});
    shard.lse = HostTensor<Real>({rows_q, c.num_heads_q});
    shard.max_logits = HostTensor<Real>({c.num_heads_q});
    shard.dq = HostTensor<Real>({rows_q, c.num_heads_q, c.head_dim_qk});
    shard.dk = HostTensor<Real>({rows_k, c.num_heads_kv, c.head_dim_qk});
    shard.dv = HostTensor<Real>({rows_k, c.num_heads_kv, c.head_dim_v});
    return shard;
  }

  void run_rank(Communicator& communicator) {
    cpu::set_num_threads(1);
    Shard shard = take_shard(communicator.rank());
    DistributedAttention attention(plan_, communicator);
    const AttentionInputs inputs{
        .q = shard.q, .k = shard.k, .v = shard.v, .sink = shard.sink, .params = case_.params};
    const AttentionResult result{
        .out = shard.out, .lse = shard.lse, .max_logits = shard.max_logits};
    const auto start = communicator.counters().bytes_to_peer;
    attention.forward(inputs, result);
    const auto middle = communicator.counters().bytes_to_peer;
    attention.backward(inputs, result, {.dout = shard.dout, .dlse = shard.dlse},
                       {.dq = shard.dq, .dk = shard.dk, .dv = shard.dv, .dsink = shard.dsink});
    const auto end = communicator.counters().bytes_to_peer;
    const auto row = static_cast<std::size_t>(communicator.rank()) * start.size();
    for (std::size_t peer = 0; peer < start.size(); ++peer) {
      results_.forward_bytes[row + peer] = middle[peer] - start[peer];
      results_.backward_bytes[row + peer] = end[peer] - middle[peer];
    }
    gather(shard, communicator);
  }

  void gather(Shard& shard, Communicator& communicator) {
    const PlanConfig& c = plan_->config;
    const auto undo = [&](const HostTensor<Real>& local, const Placement& placement,
                          std::int64_t rows, std::int64_t heads, std::int64_t dim,
                          std::vector<double>& kept) {
      HostTensor<Real> global({rows, heads, dim});
      TensorView view = local;
      // lse [rows, heads] gathers as [rows, heads, 1].
      if (view.rank == 2) {
        view = contiguous_view(view.data, view.dtype, {view.shape[0], view.shape[1], 1});
      }
      undispatch(view, placement, communicator, global);
      if (communicator.rank() == 0) kept.assign(global.elements().begin(), global.elements().end());
    };
    const std::int64_t rows_q = case_.mask.rows_q;
    const std::int64_t rows_k = case_.mask.rows_k;
    const Placement& queries = plan_->placement_q;
    const Placement& keys = plan_->placement_k;
    undo(shard.out, queries, rows_q, c.num_heads_q, c.head_dim_v, results_.out);
    undo(shard.lse, queries, rows_q, c.num_heads_q, 1, results_.lse);
    undo(shard.dq, queries, rows_q, c.num_heads_q, c.head_dim_qk, results_.dq);
    undo(shard.dk, keys, rows_k, c.num_heads_kv, c.head_dim_qk, results_.dk);
    undo(shard.dv, keys, rows_k, c.num_heads_kv, c.head_dim_v, results_.dv);
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const auto dsink = shard.dsink.elements();
    if (case_.num_sinks > 0 && is_sink_per_row_) {
      undo(shard.dsink, queries, rows_q, case_.num_sinks, c.num_heads_q, results_.dsink);
    } else {
      dsink_parts_[rank].assign(dsink.begin(), dsink.end());
    }
    if (rank == 0) {
      const auto most = shard.max_logits.elements();
      results_.max_logits.assign(most.begin(), most.end());
    }
  }

  const VerifyCase& case_;
  const CaseData& data_;
  std::shared_ptr<const Plan> plan_;
  bool is_sink_per_row_;
  CaseResults results_;
  std::vector<std::vector<double>> dsink_parts_;  ///< [ranks]
};

}  // namespace

CaseResults run_case(const VerifyCase& verify_case, const Plan& plan, const CaseData& data) {
  if (verify_case.dtype == DType::Float64) return CaseRun<double>(verify_case, plan, data).run();
  return CaseRun<float>(verify_case, plan, data).run();
}

}  // namespace magi::cli
