// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "comm/mailbox_group.hpp"
#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"
#include "support/comm_error.hpp"

// Ranks that call attention with other options than each other are told.
namespace magi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Floats = HostTensor<float>;

/// Table: functions of a supplier that does not compare exchanges.
enum class Transport { Threads, Shm, Table };

constexpr std::int64_t kRows = 8;  // of a rank

/// What one rank calls with, and its tensors.
struct Call {
  Floats q{{kRows, 4, 8}}, k{{kRows, 2, 8}}, v{{kRows, 2, 4}}, out{{kRows, 4, 4}}, lse{{kRows, 4}};
  Floats dout{{kRows, 4, 4}}, dlse{{kRows, 4}}, max_logits{{4}}, sink{{2, 4}}, row_sink{{8, 2, 4}};
  Floats dq{{kRows, 4, 8}}, dk{{kRows, 2, 8}}, dv{{kRows, 2, 4}}, dsink{{2, 4}};

  AttentionInputs inputs{.q = q, .k = k, .v = v};
  AttentionResult result{.out = out, .lse = lse};
  OutputGradients output_gradients{.dout = dout};
  InputGradients input_gradients{.dq = dq, .dk = dk, .dv = dv};
  AttentionOptions options;

  /// Puts float64 tensors in the place of all that are given.
  void widen() {
    for (TensorView* tensor :
         {&inputs.q, &inputs.k, &inputs.v, &result.out, &result.lse, &output_gradients.dout,
          &input_gradients.dq, &input_gradients.dk, &input_gradients.dv}) {
      tensor->dtype = DType::Float64;
      tensor->data = doubles_.emplace_back(static_cast<std::size_t>(tensor->num_elements())).data();
    }
  }

 private:
  std::vector<std::vector<double>> doubles_;
};

using Change = std::function<void(Call&)>;

std::shared_ptr<const Plan> plan_for(std::int32_t num_ranks, WorkMode work = WorkMode::Keys) {
  const auto rows = static_cast<std::int32_t>(kRows) * num_ranks;
  const Mask mask = mask_from_window({0, rows}, {0, rows}, {.left = -1, .right = 0}, rows, rows);
  PlanConfig config{.num_ranks = num_ranks,
                    .num_heads_q = 4,
                    .num_heads_kv = 2,
                    .head_dim_qk = 8,
                    .head_dim_v = 4,
                    .element_bytes = 4};
  config.work = work;
  return std::make_shared<const Plan>(make_plan(mask, config));
}

/// Runs `body` by the ranks of a group, which are threads whatever carries their rows.
void run_over(Transport transport, std::int32_t num_ranks,
              const std::function<void(Communicator&)>& body) {
  const std::chrono::seconds deadline(20);
  static int num_groups = 0;
  const std::string name =
      "magi-call-options-test-" + std::to_string(getpid()) + "-" + std::to_string(++num_groups);
  const auto tables = testing::make_mailbox_group(num_ranks);
  const auto run_rank = [&](Communicator& group) {
    const std::int32_t rank = group.rank();
    switch (transport) {
      case Transport::Threads:
        return body(group);
      case Transport::Table:
        return body(*tables[static_cast<std::size_t>(rank)]);
      case Transport::Shm:
        const auto bootstrap = local_bootstrap(name, rank, num_ranks, deadline);
        return body(*make_shm_group(rank, num_ranks, bootstrap, {.deadline = deadline}));
    }
  };
  run_ranks(num_ranks, run_rank, {.deadline = deadline});
}

enum class Pass { Forward, Backward };

/// What each of three ranks is told where `change` is made on rank 1 alone; "" for nothing.
std::vector<std::string> errors_of(Transport transport, Pass pass, const Change& change,
                                   WorkMode work = WorkMode::Keys) {
  constexpr std::int32_t kRanks = 3;
  std::vector<std::string> errors(kRanks);
  const auto plan = plan_for(kRanks, work);
  EXPECT_EQ(std::ranges::any_of(plan->exchanges,
                                [](const auto& each) { return each.role == Role::Queries; }),
            work == WorkMode::Queries);
  run_over(transport, kRanks, [&](Communicator& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Call call;
    if (rank == 1) change(call);
    try {
      DistributedAttention attention(plan, group, call.options);
      if (pass == Pass::Forward) {
        attention.forward(call.inputs, call.result);
      } else {
        attention.backward(call.inputs, call.result, call.output_gradients, call.input_gradients);
      }
      group.allgather_sync({});  // a rank that met no other one in the pass
    } catch (const CommError& error) {
      EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
      errors[rank] = error.what();
    }
  });
  return errors;
}

class OtherOptions : public ::testing::TestWithParam<Transport> {
 protected:
  static void expect_reported(Pass pass, const std::string& name, const Change& change,
                              WorkMode work = WorkMode::Keys) {
    SCOPED_TRACE(name);
    for (const std::string& error : errors_of(GetParam(), pass, change, work)) {
      EXPECT_THAT(error, AllOf(HasSubstr("calls with other options than rank"), HasSubstr("rank 1"),
                               HasSubstr(": " + name + "; in stage")));
    }
  }
  static void expect_reported(const std::string& name, const Change& change) {
    expect_reported(Pass::Forward, name, change);
    expect_reported(Pass::Backward, name, change);
  }
};

TEST_P(OtherOptions, AreNamedInBothPasses) {
  expect_reported("softmax_scale", [](Call& call) { call.inputs.params.softmax_scale = 0.5; });
  expect_reported("softcap", [](Call& call) { call.inputs.params.softcap = 20.0; });
  expect_reported("sink", [](Call& call) { call.inputs.sink = call.sink; });
  expect_reported("sink", [](Call& call) {
    call.inputs.sink = call.row_sink;
    call.inputs.params.sink_layout = SinkLayout::RowSinkHead;
  });
  expect_reported("type of q", [](Call& call) { call.widen(); });
  expect_reported("are_partials_rounded",
                  [](Call& call) { call.options.are_partials_rounded = true; });
}

TEST_P(OtherOptions, OfOnePassAreNamedThere) {
  expect_reported(Pass::Forward, "max_logits",
                  [](Call& call) { call.result.max_logits = call.max_logits; });
  expect_reported(Pass::Backward, "is_fast_backward",
                  [](Call& call) { call.inputs.is_fast_backward = true; });
  expect_reported(
      Pass::Backward, "dlse", [](Call& call) { call.output_gradients.dlse = call.dlse; },
      WorkMode::Queries);
}

/// What no other rank reads may be of one rank alone.
TEST_P(OtherOptions, OfOneRankAreAllowed) {
  const std::vector<std::string> none(3);
  EXPECT_EQ(
      errors_of(GetParam(), Pass::Forward, [](Call& call) { call.inputs.is_fast_backward = true; }),
      none);
  EXPECT_EQ(errors_of(GetParam(), Pass::Backward,
                      [](Call& call) { call.output_gradients.dlse = call.dlse; }),
            none);
  EXPECT_EQ(errors_of(GetParam(), Pass::Forward, [](Call& call) { call.options.exchange_sms = 2; }),
            none);
  EXPECT_EQ(errors_of(GetParam(), Pass::Forward,
                      [](Call& call) {
                        call.inputs.params.softmax_scale = 1.0 / std::sqrt(8.0);
                        call.inputs.params.softcap = -0.0;
                      }),
            none);
}

TEST_P(OtherOptions, ThatAreEqualAreNeverRefused) {
  constexpr int kCases = 40;
  constexpr std::uint64_t kSeed = 71;
  for (int i = 0; i < kCases; ++i) {
    SCOPED_TRACE("seed " + std::to_string(kSeed) + ", case " + std::to_string(i));
    RandomStream random(kSeed * 1000 + static_cast<std::uint64_t>(i));
    const auto num_ranks = static_cast<std::int32_t>(random.between(2, 4));
    const auto plan = plan_for(num_ranks, random.chance(30) ? WorkMode::Queries : WorkMode::Keys);
    const double scale = std::ldexp(static_cast<double>(random.between(1, 1000)), -10);
    const double softcap = random.chance(50) ? static_cast<double>(random.between(1, 50)) : 0.0;
    const bool has_sink = random.chance(50), has_maxima = random.chance(50);
    const bool has_dlse = random.chance(50), is_fast = random.chance(50);
    const bool are_rounded = random.chance(50);
    run_over(GetParam(), num_ranks, [&](Communicator& group) {
      Call call;
      call.inputs.params = {.softmax_scale = scale, .softcap = softcap};
      call.inputs.is_fast_backward = is_fast;
      call.options.are_partials_rounded = are_rounded;
      if (has_sink) call.inputs.sink = call.sink;
      // The gradient of a sink is of one rank's rows.
      if (has_sink && group.rank() == 0) call.input_gradients.dsink = call.dsink;
      if (has_maxima) call.result.max_logits = call.max_logits;
      if (has_dlse) call.output_gradients.dlse = call.dlse;
      DistributedAttention attention(plan, group, call.options);
      for (int repeat = 0; repeat < 2; ++repeat) {
        attention.forward(call.inputs, call.result);
        attention.backward(call.inputs, call.result, call.output_gradients, call.input_gradients);
      }
      group.allgather_sync({});
    });
  }
}

/// A call that moves rows of 24, 8 of each of three ranks, without attention.
struct RowCall {
  std::vector<std::int32_t> chunk_rank{0, 1, 2, 2, 1, 0};
  std::int32_t num_rows = 24;
  std::int64_t width = 3, shift = 5;
  enum class Function { Undispatch, SumOfRows, Roll } function = Function::Roll;

  void run(Communicator& group) const {
    const Placement placement = placement_from_chunks(24, 4, 3, chunk_rank);
    const Floats local({kRows, width}), out({kRows, width}), global({num_rows, width});
    switch (function) {
      case Function::Undispatch:
        return undispatch(local, placement, group, global);
      case Function::SumOfRows:
        return undispatch_backward(global, placement, group, UndispatchGradient::Partial, local);
      case Function::Roll:
        return roll(local, placement, num_rows, shift, group, out);
    }
  }
};

using RowChange = std::function<void(RowCall&)>;

/// All ranks are told where `change` is made on rank 1 alone; `text` is what they are told.
void expect_rows_reported(Transport transport, const std::string& text, RowCall call,
                          const RowChange& change) {
  SCOPED_TRACE(text);
  run_over(transport, 3, [&](Communicator& group) {
    RowCall own = call;
    if (group.rank() == 1) change(own);
    const CommError error = testing::catch_comm_error([&] {
      own.run(group);
      group.allgather_sync({});
    });
    EXPECT_EQ(error.failure(), CommFailure::PlanMismatch) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
  });
}

TEST_P(OtherOptions, OfCallsWithoutAttentionAreNamed) {
  using Function = RowCall::Function;
  for (const Function function : {Function::Undispatch, Function::SumOfRows, Function::Roll}) {
    const RowCall call{.function = function};
    expect_rows_reported(GetParam(), "plan 0x", call,
                         [](RowCall& odd) { odd.chunk_rank = {0, 2, 1, 2, 1, 0}; });
    expect_rows_reported(GetParam(), ": shape of the sequence; in stage 0", call,
                         [](RowCall& odd) { odd.width = 4; });
    expect_rows_reported(GetParam(), ": shape of the sequence; in stage 0", call,
                         [](RowCall& odd) { odd.num_rows = 23; });
  }
  expect_rows_reported(GetParam(), ": shift; in stage 0", {}, [](RowCall& odd) { odd.shift = 6; });
  expect_rows_reported(GetParam(), "function; in stage 0", {.function = Function::Undispatch},
                       [](RowCall& odd) { odd.function = Function::Roll; });
}

TEST_P(OtherOptions, OfShiftsThatLeadToTheSameRowsAreEqual) {
  run_over(GetParam(), 3, [](Communicator& group) {
    RowCall call;
    if (group.rank() == 1) call.shift -= 2 * call.num_rows;
    call.run(group);
    group.allgather_sync({});
  });
}

constexpr const char* kTransportNames[] = {"threads", "shm", "table"};

INSTANTIATE_TEST_SUITE_P(Transports, OtherOptions,
                         ::testing::Values(Transport::Threads, Transport::Shm, Transport::Table),
                         [](const auto& transport) {
                           return std::string(kTransportNames[static_cast<int>(transport.param)]);
                         });

}  // namespace
}  // namespace magi
