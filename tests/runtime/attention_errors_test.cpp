// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "kernels/attention/supplied_backend.hpp"
#include "kernels/attention/supplied_table.hpp"
#include "magi/mask_builders.hpp"
#include "magi/runtime.hpp"
#include "support/comm_error.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

using testing::catch_comm_error, testing::refusal_of;
using Floats = HostTensor<float>;

/// Tensors of one rank that fit the plan, for tests that poison one of them.
struct Tensors {
  Floats q{{16, 4, 8}}, k{{16, 2, 8}}, v{{16, 2, 4}}, out{{16, 4, 4}}, lse{{16, 4}};
  Floats dout{{16, 4, 4}}, dq{{16, 4, 8}}, dk{{16, 2, 8}}, dv{{16, 2, 4}};

  AttentionInputs inputs{.q = q, .k = k, .v = v};
  AttentionResult result{.out = out, .lse = lse};
  OutputGradients output_gradients{.dout = dout};
  InputGradients input_gradients{.dq = dq, .dk = dk, .dv = dv};
};

std::shared_ptr<const Plan> plan_for(std::int32_t num_ranks) {
  const Mask mask = mask_from_window({0, 16}, {0, 16}, {.left = -1, .right = 0}, 16, 16);
  return std::make_shared<const Plan>(make_plan(mask, {.num_ranks = num_ranks,
                                                       .num_heads_q = 4,
                                                       .num_heads_kv = 2,
                                                       .head_dim_qk = 8,
                                                       .head_dim_v = 4,
                                                       .element_bytes = 4}));
}

class AttentionErrors : public ::testing::Test {
 protected:
  std::string forward() {
    return refusal_of([&] { attention.forward(tensors.inputs, tensors.result); });
  }
  std::string backward() {
    return refusal_of([&] {
      attention.backward(tensors.inputs, tensors.result, tensors.output_gradients,
                         tensors.input_gradients);
    });
  }

  std::vector<std::unique_ptr<Communicator>> group = make_thread_group(1);
  DistributedAttention attention{plan_for(1), *group[0]};
  Tensors tensors;
};

TEST_F(AttentionErrors, NothingIsWrongWithTheUnspoiledTensors) {
  EXPECT_EQ(forward(), "accepted");
  EXPECT_EQ(backward(), "accepted");
}

TEST_F(AttentionErrors, AnObjectThatWasMovedFromSaysSo) {
  const DistributedAttention taken = std::move(attention);
  const std::string told = "attention is moved from; allowed: an object that has its plan";
  EXPECT_EQ(forward(), told);
  EXPECT_EQ(backward(), told);
  EXPECT_EQ(refusal_of([&] { attention.plan(); }), told);
  EXPECT_EQ(refusal_of([&] { attention.workspace_bytes(); }), told);
  EXPECT_EQ(refusal_of([&] { attention.start_trace(); }), told);
  EXPECT_EQ(refusal_of([&] { attention.stop_trace(); }), told);
}

TEST(AttentionOfNoPlan, IsRefused) {
  const std::string told = "plan.ranks is empty; allowed: those of a plan that was made";
  const auto group = make_thread_group(1);
  EXPECT_EQ(refusal_of([&] { DistributedAttention(std::make_shared<const Plan>(), *group[0]); }),
            told);
  EXPECT_EQ(refusal_of([] { describe(Plan{}); }), told);
}

TEST(RunRanks, AnEmptyBodyIsRefused) {
  EXPECT_EQ(refusal_of([] { run_ranks(2, {}); }), "body is empty; allowed: a function");
}

TEST_F(AttentionErrors, ADeviceThatIsRefusedHoldsNothing) {
  tensors.inputs.q.device = 1000;
  EXPECT_NE(forward(), "accepted");
  EXPECT_EQ(attention.workspace_bytes(), 0U);
  tensors.inputs.q.device = kCpuDevice;
  EXPECT_EQ(forward(), "accepted");
}

TEST_F(AttentionErrors, ASinkMayComeWithoutAPlaceForItsGradient) {
  const Floats sink({2, 4});
  tensors.input_gradients.dsink = sink;
  EXPECT_EQ(backward(), "dsink is given; allowed: none without sink");
  tensors.inputs.sink = sink;
  EXPECT_EQ(backward(), "accepted");
  tensors.input_gradients.dsink = {};
  EXPECT_EQ(backward(), "accepted");
}

TEST(AttentionGroup, HasThePlansSize) {
  const auto group = make_thread_group(1);
  EXPECT_EQ(refusal_of([&] { DistributedAttention(plan_for(2), *group[0]); }),
            "communicator.num_ranks is 1; allowed: 2 (the plan's)");
  EXPECT_EQ(refusal_of([&] { DistributedAttention(nullptr, *group[0]); }),
            "plan is null; allowed: a plan");
}

TEST(AttentionGroup, RefusesOptionsThatNoDeviceAllows) {
  const auto group = make_thread_group(1);
  const auto made_with = [&](const AttentionOptions& options) {
    return refusal_of([&] { DistributedAttention(plan_for(1), *group[0], options); });
  };
  EXPECT_EQ(made_with({.exchange_sms = -1}),
            "options.exchange_sms is -1; allowed: 0 to 1048576, and less than a GPU has");
  EXPECT_EQ(made_with({.exchange_sms = (1 << 20) + 1}),
            "options.exchange_sms is 1048577; allowed: 0 to 1048576, and less than a GPU has");
  EXPECT_EQ(made_with({.exchange_sms = 0}), "accepted");
  EXPECT_EQ(made_with({.backend = "cpu"}), "accepted");
  const std::string refused = made_with({.backend = "nobody"});
  EXPECT_EQ(refused.rfind("options.backend is nobody; allowed: cpu", 0), 0U) << refused;
}

TEST(AttentionGroup, SinksThatItsBackendRefusesLeaveItUsable) {
  test::TableLog log;
  magi_attention_backend table = test::table_over_cpu(log, "over cpu");
  table.limits.has_sink = 1;
  table.limits.min_dim_v = table.limits.dim_v_multiple = 4;
  add_backend("over cpu", [&] { return make_supplied_backend(table); });
  const auto group = make_thread_group(1);
  DistributedAttention attention(plan_for(1), *group[0], {.backend = "over cpu"});
  Tensors tensors;
  const Floats values({2, 8}), sink({2, 4}), dsink({2, 4});
  TensorView spread = values;
  spread.shape[1] = 4;
  spread.stride[1] = 2;
  const auto forward = [&] {
    return refusal_of([&] { attention.forward(tensors.inputs, tensors.result); });
  };
  const auto backward = [&] {
    return refusal_of([&] {
      attention.backward(tensors.inputs, tensors.result, tensors.output_gradients,
                         tensors.input_gradients);
    });
  };
  tensors.inputs.sink = spread;
  EXPECT_EQ(forward(), "sink.stride[1] is 2; allowed: 1");
  EXPECT_EQ(backward(), "sink.stride[1] is 2; allowed: 1");
  tensors.inputs.sink = sink;
  tensors.input_gradients.dsink = spread;
  EXPECT_EQ(backward(), "dsink.stride[1] is 2; allowed: 1");
  EXPECT_EQ(group[0]->allgather_sync({}).size(), 1U) << "nothing was begun, so nothing is ended";
  tensors.input_gradients.dsink = dsink;
  EXPECT_EQ(forward(), "accepted");
  EXPECT_EQ(backward(), "accepted");
  remove_backend("over cpu");
}

TEST_F(AttentionErrors, TheCpuTakesSinksOfAnyStrides) {
  const Floats values({2, 8}), gradients({2, 8});
  TensorView sink = values, dsink = gradients;
  for (TensorView* tensor : {&sink, &dsink}) {
    tensor->shape[1] = 4;
    tensor->stride[1] = 2;
  }
  tensors.inputs.sink = sink;
  tensors.input_gradients.dsink = dsink;
  EXPECT_EQ(forward(), "accepted");
  EXPECT_EQ(backward(), "accepted");
}

TEST(AttentionGroup, RanksWithDifferentPlansAreTold) {
  const auto start = [](Communicator& communicator) {
    auto plan = *plan_for(2);
    if (communicator.rank() == 1) plan.digest += 1;
    DistributedAttention(std::make_shared<const Plan>(plan), communicator);
  };
  EXPECT_EQ(catch_comm_error([&] { run_ranks(2, start); }).failure(), CommFailure::PlanMismatch);
}

TEST(AttentionGroup, ARankThatNeverCallsIsReported) {
  const auto call = [](Communicator& communicator) {
    DistributedAttention attention(plan_for(2), communicator);
    if (communicator.rank() == 1) {
      // Stays alive and silent until the others have given up.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
      return;
    }
    const Floats q({8, 4, 8}), k({8, 2, 8}), v({8, 2, 4}), out({8, 4, 4}), lse({8, 4});
    attention.forward({.q = q, .k = k, .v = v}, {.out = out, .lse = lse});
  };
  const CommOptions options{.deadline = std::chrono::milliseconds(100)};
  EXPECT_EQ(catch_comm_error([&] { run_ranks(2, call, options); }).failure(), CommFailure::Timeout);
}

TEST(AttentionGroup, ARankThatFailsHalfwayWakesTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  const auto call = [](Communicator& communicator) {
    Plan plan = *plan_for(2);
    // A slice beyond the rows: the attention call of rank 1 refuses it when casts are under way.
    if (communicator.rank() == 1) plan.ranks[1].slices.front().q1 = 1000;
    DistributedAttention attention(std::make_shared<const Plan>(plan), communicator);
    const Floats q({8, 4, 8}), k({8, 2, 8}), v({8, 2, 4}), out({8, 4, 4}), lse({8, 4});
    const Floats max_logits({4});
    attention.forward({.q = q, .k = k, .v = v}, {.out = out, .lse = lse, .max_logits = max_logits});
  };
  EXPECT_NE(refusal_of([&] { run_ranks(2, call); }).find("1000"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30))
      << "rank 0 waited for the deadline of 100 s";
}

TEST(RunRanks, TheFirstErrorEndsTheGroupAndLeaves) {
  const auto body = [](Communicator& communicator) {
    if (communicator.rank() == 1) throw std::out_of_range("rank one is lost");
    communicator.allgather_sync({});
  };
  EXPECT_THROW(run_ranks(3, body), std::out_of_range);
  EXPECT_THROW(run_ranks(0, body), InvalidArgument);
}

/// Leaves this process addresses for the stacks of two more threads.
void allow_two_threads() {
  constexpr std::size_t kStack = std::size_t{1} << 30;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_setattr_default_np(&attributes);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<rlim_t>(getpagesize()) + 2 * kStack + kStack / 2;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
}

TEST(RunRanks, AThreadThatCannotStartEndsTheOthers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need more addresses than the limit";
#endif
  const auto run = [] {
    allow_two_threads();
    std::atomic<int> num_woken = 0;
    try {
      run_ranks(4,
                [&](Communicator& communicator) {
                  try {
                    communicator.allgather_sync({});
                  } catch (const CommError& error) {
                    if (error.failure() == CommFailure::Aborted) ++num_woken;
                  }
                },
                {.deadline = std::chrono::seconds(5)});
    } catch (const CommError& error) {
      std::cerr << error.what() << ", " << num_woken << " woken";
      std::exit(error.failure() == CommFailure::System ? 0 : 1);
    }
    std::exit(2);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0),
              "the thread of rank 2 cannot start: .*, 2 woken");
}

}  // namespace
}  // namespace magi
