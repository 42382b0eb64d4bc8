// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "runtime/step_call.hpp"

namespace magi {
namespace {

/// The places of a backward's tensors in the group of Role::Queries (see TensorGroup).
enum QueryTensor : std::uint8_t { kQ, kOut, kDout, kLse, kDlse };

/// A part whose first row is `row` of dk and dv.
PartGradients gradients_at(const TensorGroup& tensors, std::int32_t row) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(tensors[0].dtype));
  const auto at = [&](const TensorView& tensor) {
    return static_cast<std::byte*>(tensor.data) + row * tensor.stride[0] * element;
  };
  return {.dk = at(tensors[0]),
          .dv = at(tensors[1]),
          .dk_row_bytes = tensors[0].stride[0] * element,
          .dk_head_bytes = tensors[0].stride[1] * element,
          .dv_row_bytes = tensors[1].stride[0] * element,
          .dv_head_bytes = tensors[1].stride[1] * element,
          .dtype = tensors[0].dtype};
}

/// One backward call. Owners add partial gradients behind their own part, exchange by exchange in
/// the order of the steps, and in each in the order of the ranks.
class BackwardPass {
 public:
  BackwardPass(StepCall& call, const AttentionInputs& inputs, const TensorView& dsink)
      : call_(call),
        inputs_(inputs),
        dsink_(dsink),
        dq_(call.own(Role::QueryGradients)[0]),
        dk_and_dv_(call.own(Role::KeyGradients)) {
    const std::vector<bool> none(static_cast<std::size_t>(call.steps.plan.config.num_heads_kv));
    written_heads_.resize(1 + call.steps.plan.exchanges.size(), none);
    set_sums();
  }

  void exchange(const Step& step);
  BackwardArgs make_args(const AttendCall& attend);
  /// Where the key gradients of an attend's parts go: other ranks' straight to them.
  std::vector<PartGradients> place_gradients(const AttendCall& attend);
  void store();

  /// Leaves 0 as dq of own queries that see no keys and no sink: of all shares with the first
  /// one's.
  void write_idle_gradients(const AttendCall& attend);

 private:
  /// Puts in place of the caller's gradients what parts are added to.
  void set_sums();
  /// Whether an attend adds to gradients of its keys; else it writes them. Of the own keys of
  /// several shares each attend has some rows, so all are cleared before.
  bool adds_to_keys(const AttendCall& attend);
  /// Clears key gradients of `heads` that no attend has written; `exchange` fills their segment.
  void clear_rest(std::int32_t exchange, Range heads);
  std::vector<bool>& written(std::int32_t exchange) { return written_heads_[segment_of(exchange)]; }

  StepCall& call_;
  const AttentionInputs& inputs_;
  const TensorView& dsink_;
  TensorView dq_;                                 ///< the caller's
  TensorGroup dk_and_dv_;                         ///< likewise
  std::vector<std::vector<bool>> written_heads_;  ///< of key gradients: own, then by exchange
  bool is_dsink_written_ = false;
};

void BackwardPass::set_sums() {
  const RankSteps& steps = call_.steps;
  // Copied own keys have their sums in the segment that holds the copy. Attends of several shares
  // add to own keys that were cleared.
  const bool is_added = !steps.is_own_keys_copied() && !call_.is_whole(Role::KeyGradients) &&
                        (!steps.plan.exchanges.empty() || steps.shares.count > 1);
  const bool is_dq_added = steps.num_results > 1 && !call_.is_whole(Role::QueryGradients);
  call_.set_own(Role::QueryGradients, {call_.sum_for(dq_, is_dq_added)});
  call_.set_own(Role::KeyGradients,
                {call_.sum_for(dk_and_dv_[0], is_added), call_.sum_for(dk_and_dv_[1], is_added)});
}

void BackwardPass::clear_rest(std::int32_t exchange, Range heads) {
  std::vector<bool>& is_written = written(exchange);
  const auto at = [&](std::int32_t head) { return is_written.begin() + head; };
  for (std::int32_t head = heads.begin; head < heads.end;) {
    const auto end = static_cast<std::int32_t>(std::find(at(head), at(heads.end), !*at(head)) -
                                               is_written.begin());
    if (!*at(head)) {
      for (const TensorView& sum : call_.tensors(Role::KeyGradients, exchange, {head, end})) {
        call_.fill(sum, 0.0);
      }
    }
    std::fill(at(head), at(end), true);
    head = end;
  }
}

bool BackwardPass::adds_to_keys(const AttendCall& attend) {
  if (attend.k_rows.empty()) return false;
  const Range heads = attend.attend.heads;
  if (attend.keys < 0 && call_.steps.shares.count > 1) clear_rest(-1, heads);
  const auto first = written(attend.keys).begin() + heads.begin;
  const bool is_adding = std::find(first, first + heads.size(), true) != first + heads.size();
  if (is_adding) clear_rest(attend.keys, heads);
  std::fill_n(first, heads.size(), true);
  return is_adding;
}

void BackwardPass::write_idle_gradients(const AttendCall& attend) {
  if (attend.share > 0) return;
  call_.fill(call_.tensors(Role::QueryGradients, -1, attend.attend.heads)[0], 0.0);
}

/// The first attend of some queries or keys writes their gradients, later ones add to them. The
/// first of the own queries gives the sink's gradient, which needs no key.
BackwardArgs BackwardPass::make_args(const AttendCall& attend) {
  const Attend& what = attend.attend;
  const TensorGroup queries = call_.tensors(Role::Queries, attend);
  const TensorView dq = call_.tensors(Role::QueryGradients, attend)[0];
  const TensorGroup keys = call_.tensors(Role::KeysValues, attend);
  const TensorGroup sums = call_.tensors(Role::KeyGradients, attend);
  const bool is_adding = adds_to_keys(attend);
  if (is_adding && !what.is_merging) call_.fill(dq, 0.0);
  BackwardArgs args{.q = queries[kQ],
                    .k = keys[0],
                    .v = keys[1],
                    .slices = {},
                    .out = queries[kOut],
                    .lse = queries[kLse],
                    .dout = queries[kDout],
                    .dlse = queries[kDlse],
                    .dq = dq,
                    .dk = sums[0],
                    .dv = sums[1],
                    .is_accumulating = what.is_merging || is_adding,
                    .is_writing_keys = !is_adding,
                    .params = inputs_.params};
  if (attend.queries < 0 && !what.is_merging && !dsink_.empty()) {
    args.sink = sink_of(inputs_.sink, call_.steps, attend);
    args.dsink = sink_of(dsink_, call_.steps, attend);
    if (is_adding) call_.fill(args.dsink, 0.0);
    is_dsink_written_ = true;
  }
  return args;
}

std::vector<PartGradients> BackwardPass::place_gradients(const AttendCall& attend) {
  const RankSteps& steps = call_.steps;
  TensorGroup sums = call_.tensors(Role::KeyGradients, attend.keys, attend.attend.heads);
  for (TensorView& sum : sums) sum.dtype = call_.partial_type(Role::KeyGradients, sum.dtype);
  const auto row_bytes_of = [](const TensorView& sum) {
    return sum.shape[1] * sum.shape[2] * static_cast<std::int64_t>(dtype_bytes(sum.dtype));
  };
  const auto head_bytes_of = [](const TensorView& sum) {
    return sum.shape[2] * static_cast<std::int64_t>(dtype_bytes(sum.dtype));
  };
  const SegmentRows& rows =
      steps.rows_of(steps.plan.exchanges[static_cast<std::size_t>(attend.keys)]);
  const auto regions = call_.memory.exchanger().place_partials(rows.returning(), sums);
  const std::int64_t row_bytes = row_bytes_of(sums[0]) + row_bytes_of(sums[1]);
  const TensorGroup own = call_.tensors(Role::KeyGradients, -1, attend.attend.heads);
  const TensorGroup results = heads_of(call_.placed_gradients(), attend.attend.heads);
  std::int32_t num_rows = 0, sum_row = 0;
  std::vector<PartGradients> gradients;
  for (const comm::NeededPart& part : call_.memory.attends().parts_of(attend)) {
    PartGradients place;
    if (part.wire_row >= 0) {
      std::byte* row = regions[static_cast<std::size_t>(part.source)] + part.wire_row * row_bytes;
      place = {.dk = row,
               .dv = row + row_bytes_of(sums[0]),
               .dk_row_bytes = row_bytes,
               .dk_head_bytes = head_bytes_of(sums[0]),
               .dv_row_bytes = row_bytes,
               .dv_head_bytes = head_bytes_of(sums[1]),
               .dtype = sums[0].dtype};
    } else if (!results.empty()) {
      place = part.is_shared ? gradients_at(own, std::exchange(sum_row, sum_row + part.num_rows))
                             : gradients_at(results, part.row);
    }
    num_rows += part.num_rows;
    gradients.push_back(place);
  }
  MAGI_CHECK(results.empty() || (num_rows == rows.num_rows && sum_row == own[0].shape[0]));
  call_.set_partials_written();
  return gradients;
}

void BackwardPass::exchange(const Step& step) {
  const RankSteps& steps = call_.steps;
  const Exchange& exchange = steps.plan.exchanges[static_cast<std::size_t>(step.index)];
  const Range heads = exchange.heads;
  if (exchange.role == Role::KeyGradients) {
    clear_rest(steps.filling_exchange(Space::Keys, exchange.segment, heads), heads);
    clear_rest(-1, heads);
  }
  call_.exchange(step);
  if (exchange.role == Role::KeysValues && !steps.rows_of(exchange).own.empty()) {
    std::fill_n(written(-1).begin() + heads.begin, heads.size(), true);  // among the segment's
  }
}

void BackwardPass::store() {
  clear_rest(-1, {0, call_.steps.plan.config.num_heads_kv});
  const bool is_stored = call_.round_sums(Role::KeyGradients, dk_and_dv_);
  MAGI_CHECK(is_stored || call_.placed_gradients().empty());
  const bool is_dq_stored = call_.round_sums(Role::QueryGradients, {dq_});
  call_.await_all();
  if (!is_dq_stored) call_.store(call_.own(Role::QueryGradients)[0], dq_);
  if (!is_stored) {
    call_.store(call_.own(Role::KeyGradients)[0], dk_and_dv_[0]);
    call_.store(call_.own(Role::KeyGradients)[1], dk_and_dv_[1]);
  }
  if (!dsink_.empty() && !is_dsink_written_) call_.fill(dsink_, 0.0);
}

}  // namespace

void set_tensors(StepCall& call, const AttentionInputs& inputs, const AttentionResult& result,
                 const OutputGradients& output_gradients, const InputGradients& input_gradients) {
  call.set_own(Role::KeysValues, {inputs.k, inputs.v});
  call.set_own(Role::Queries,
               {inputs.q, result.out, output_gradients.dout, result.lse, output_gradients.dlse});
  call.set_own(Role::QueryGradients, {input_gradients.dq});
  call.set_own(Role::KeyGradients, {input_gradients.dk, input_gradients.dv});
  call.set_options(inputs, false, is_given(output_gradients.dlse));
}

void run_backward(StepCall& call, const PreparedAttends<PreparedBackward>& prepared,
                  const AttentionInputs& inputs, const TensorView& dsink) {
  BackwardPass pass(call, inputs, dsink);
  const auto run = [&](const PreparedBackward& attention, const AttendCall& attend,
                       const DeviceWorkspace& workspace) {
    if (attend.is_idle && inputs.sink.rank == 0) return pass.write_idle_gradients(attend);
    const BackwardArgs args = pass.make_args(attend);
    const auto keys = call.key_arrivals();
    if (!keys) return attention.run(args, workspace, call.stream);
    const std::vector<PartGradients> gradients = pass.place_gradients(attend);
    attention.run_coming(args, workspace, {.keys = *keys, .gradients = gradients}, call.stream);
  };
  call.walk(prepared, run, [&](const Step& step) { pass.exchange(step); });
  pass.store();
}

}  // namespace magi
