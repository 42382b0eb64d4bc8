// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/stream.hpp"
#include "kernels/attention/backend.hpp"
#include "kernels/sm90/backward/case.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/gpu/key_sender.hpp"
#include "support/random_streams.hpp"

// Keys that come before, while and after the launch that needs them, and gradients with places of
// their own. Schedules: BackwardArrivalsTest.
namespace magi::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int32_t kRowsQ = 500;
constexpr std::int32_t kRowsK = 1500;

/// Own keys in the middle, those of three sources around them, gaps that nobody writes.
InFlightKeys three_sources(std::int32_t step = 90) {
  InFlightKeys coming{.num_sources = 3, .num_sections = 2};
  coming.parts = {{{0, 200}, 0}, {{210, 400}, 2}};
  for (std::int32_t row = 1000; row < kRowsK; row += step) {
    coming.parts.push_back({{row, std::min(row + step - 3, kRowsK)}, (row / step) % 3});
  }
  return coming;
}

BackwardCase case_of(DType type, std::int32_t dim, bool is_deterministic) {
  BackwardCase test;
  test.type = type;
  set_instance_dims(test, dim);
  test.heads_q = 8;
  test.heads_kv = 4;
  // Multiprocessors are left to what sends the keys.
  test.tuning = {.sm_margin = 16, .packed_heads = 1, .is_deterministic = is_deterministic};
  test.mask = {kRowsQ,
               kRowsK,
               {band_slice({0, 250}, {410, 990}, MaskType::Causal),
                band_slice({250, 300}, {20, 190}, MaskType::Full),
                band_slice({250, 400}, {1040, 1330}, MaskType::Full),
                band_slice({300, 470}, {0, kRowsK}, MaskType::Causal)}};
  return test;
}

/// A call, prepared for keys that come, and what it gives where they are there from the start.
class ArrivalCall {
 public:
  explicit ArrivalCall(const BackwardCase& test, const InFlightKeys& coming = three_sources())
      : test_(test), inputs_(test), expected_(test), judge_(make_judge(test_, inputs_)) {
    const BackwardArgs args = args_of(expected_);
    prepared_ = find_backend("", 0)->prepare_in_flight_backward(args, test.tuning, coming);
    prepared_->run(args, {}, nullptr);
    download_sync(expected_);
    judge_(expected_, Gradients::All);
    sender_ = std::make_unique<KeySender>(args.k, args.v, coming);
  }

  const BackwardCase& test() const { return test_; }
  const BackwardInputs& inputs() const { return inputs_; }
  const BackwardOutputs& expected() const { return expected_; }
  KeySender& sender() { return *sender_; }
  const PreparedBackward& prepared() const { return *prepared_; }

  BackwardArgs args_of(const BackwardOutputs& outputs) const {
    BackwardArgs args = inputs_.args(test_);
    outputs.put_into(args);
    return args;
  }
  static void download_sync(BackwardOutputs& outputs) {
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    outputs.download_sync();
  }

  /// How keys come to a run.
  enum class Way : std::uint8_t {
    Awaited,  ///< on their way, and awaited
    Behind,   ///< sent when what is before the wait is over
    Pushed,   ///< behind what needs no keys, and in front of what does; without flags
  };
  /// Runs the parts one after the other, with what brings keys and the wait where they belong.
  void run(const BackwardArgs& args, const KeyArrivals& arrivals, Way way,
           const std::vector<SendStep>& steps, const Stream& sending, cudaStream_t stream,
           const DeviceWorkspace& workspace = {},
           std::span<const PartGradients> gradients = {}) const {
    const auto await = [&] {
      if (way == Way::Awaited) sender_->await(stream);
      if (way == Way::Behind) sender_->send_behind(steps, sending, stream);
      if (way == Way::Pushed) sender_->send(sender_->all_steps(), stream);
    };
    const auto run = prepared_->begin_in_flight(args, workspace,
                                                {.keys = arrivals, .gradients = gradients}, stream);
    run->prepare();
    const bool has_waiting_tiles = !test_.tuning.is_deterministic && way != Way::Pushed;
    if (!has_waiting_tiles) await();
    run->attend();
    if (has_waiting_tiles) await();
    run->finish();
  }
  /// Runs into fresh outputs on `stream`.
  void expect_right(std::int64_t spin_budget_ns, cudaStream_t stream) const {
    expect_right(sender_->arrivals(spin_budget_ns), Way::Awaited, {}, {}, stream);
  }
  void expect_right_behind(const std::vector<SendStep>& steps, const Stream& sending,
                           cudaStream_t stream) const {
    expect_right(sender_->arrivals(0), Way::Behind, steps, sending, stream);
  }
  void expect_right_pushed(cudaStream_t stream) const {
    expect_right({}, Way::Pushed, {}, {}, stream);
  }
  void judge_queries(const BackwardOutputs& seen) const { judge_(seen, Gradients::Queries); }
  void expect_alike(const BackwardOutputs& seen) const {
    expect_same_but_dq(seen, expected_);
    if (test_.tuning.is_deterministic) {
      expect_same_gradients(seen, expected_);
    } else {
      judge_(seen, Gradients::Queries);
    }
  }

 private:
  void expect_right(const KeyArrivals& arrivals, Way way, const std::vector<SendStep>& steps,
                    const Stream& sending, cudaStream_t stream) const {
    BackwardOutputs seen(test_);
    run(args_of(seen), arrivals, way, steps, sending, stream);
    download_sync(seen);
    expect_alike(seen);
  }

  BackwardCase test_;
  BackwardInputs inputs_;
  BackwardOutputs expected_;
  std::function<void(const BackwardOutputs& seen, Gradients which)> judge_;
  std::shared_ptr<const PreparedBackward> prepared_;
  std::unique_ptr<KeySender> sender_;
};

class BackwardArrivalTest
    : public GpuTest,
      public ::testing::WithParamInterface<std::tuple<DType, std::int32_t, bool>> {
 protected:
  static BackwardCase base() {
    return case_of(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()));
  }
  /// All ways to come.
  static void check_all(const BackwardCase& test) {
    SCOPED_TRACE(::testing::Message() << test);
    ArrivalCall call(test);
    const Stream sending;
    const Stream stream;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(::testing::Message() << "arrivals of seed " << seed);
      RandomStream random(seed);
      const std::vector<SendStep> steps = call.sender().shuffled_steps(random, 100'000);
      const auto middle =
          steps.begin() + random.between(0, static_cast<std::int32_t>(steps.size()));
      // While it runs.
      call.sender().take_away_sync();
      call.sender().send(steps, sending.handle());
      call.expect_right(kSecond, stream.handle());
      // When spin budget has ended: all items are deferred.
      call.sender().take_away_sync();
      call.expect_right_behind(steps, sending, stream.handle());
      // Some before, the others when spin budget has ended.
      call.sender().take_away_sync();
      call.sender().send({steps.begin(), middle}, sending.handle());
      const std::vector<SendStep> late(middle, steps.end());
      call.expect_right_behind(late, sending, stream.handle());
      // SpinBudget ends while they come.
      call.sender().take_away_sync();
      call.sender().send(steps, sending.handle());
      call.expect_right(100'000, stream.handle());
      if (HasFailure()) return;
    }
  }
};

TEST_P(BackwardArrivalTest, WholeItems) {
  BackwardCase test = base();
  test.tuning.heads_per_item = 2;
  check_all(test);
}

/// Splits wait for each other and for slots.
TEST_P(BackwardArrivalTest, Splits) {
  BackwardCase test = base();
  test.tuning.heads_per_item = 1;
  test.num_sinks = 1;
  test.has_float_gradients = true;
  check_all(test);
  // Few CTAs have few slots, and items wait for them.
  test.tuning.sm_margin = device_info(0).num_sms - 3;
  test.tuning.section_heads = 1;
  check_all(test);
}

TEST_P(BackwardArrivalTest, Softcap) {
  BackwardCase test = base();
  test.params.softcap = 15.0;
  check_all(test);
}

/// Without determinism lists of windows are ordered too, unless keys come.
TEST_P(BackwardArrivalTest, Windows) {
  BackwardCase test = base();
  test.mask.slices = {{.q0 = 0, .q1 = kRowsQ, .k0 = 0, .k1 = kRowsK, .d_min = 900, .d_max = 1000},
                      {.q0 = 0, .q1 = kRowsQ, .k0 = 0, .k1 = 600, .d_min = -30, .d_max = 60}};
  check_all(test);
}

TEST_P(BackwardArrivalTest, KeysThatAreAwaitedAtTheStartNeedNoFlags) {
  const Stream stream;
  for (const std::int32_t heads_per_item : {2, 1, 0}) {
    BackwardCase test = base();
    test.tuning.heads_per_item = heads_per_item;
    SCOPED_TRACE(::testing::Message() << test);
    ArrivalCall call(test);
    call.sender().take_away_sync();
    call.expect_right_pushed(stream.handle());
    if (HasFailure()) return;
  }
}

TEST_P(BackwardArrivalTest, GraphsAreReplayedWithKeysThatComeAnew) {
  ArrivalCall call(base());
  const Stream sending;
  const Stream captured;
  BackwardOutputs seen(call.test());
  const BackwardArgs args = call.args_of(seen);
  const DeviceBuffer workspace(static_cast<std::size_t>(call.prepared().workspace_bytes()));
  const DeviceWorkspace given{workspace.data(), call.prepared().workspace_bytes()};
  const Graph graph(captured.handle(), [&] {
    call.run(args, call.sender().arrivals(50'000), ArrivalCall::Way::Awaited, {}, sending,
             captured.handle(), given);
  });
  for (RandomStream& random : testing::RandomStreams(5)) {
    call.sender().take_away_sync();
    call.sender().send(call.sender().shuffled_steps(random, 60'000), sending.handle());
    graph.launch(captured.handle());
    ArrivalCall::download_sync(seen);
    call.expect_alike(seen);
  }
}

/// Places of the gradients of a part: some in float32, some in the input's type, some none.
struct PartPlaces {
  PartPlaces(const BackwardCase& test, const InFlightKeys& coming) {
    constexpr Layout kLayouts[] = {Layout::PaddedRows, Layout::HeadMajor, Layout::Contiguous};
    for (std::size_t i = 0; i < coming.parts.size(); ++i) {
      const DType type = i % 2 == 0 ? DType::Float32 : test.type;
      const std::int32_t rows = coming.parts[i].rows.size();
      dk.emplace_back(type, rows, test.heads_kv, test.dim_qk, kLayouts[i % 3]);
      dv.emplace_back(type, rows, test.heads_kv, test.dim_v, kLayouts[i % 3]);
      dk.back().upload_sync();
      dv.back().upload_sync();
      gradients.push_back(i == 1 ? PartGradients{}
                                 : PartGradients{dk.back().view(), dv.back().view()});
    }
  }

  std::deque<GuardedTensor> dk;
  std::deque<GuardedTensor> dv;
  std::vector<PartGradients> gradients;
};

/// `place` has the rows of `all` from `row_begin` on, rounded to its type.
void expect_rows_of(const GuardedTensor& place, const GuardedTensor& all, std::int32_t row_begin) {
  GuardedTensor rounded(place.view().dtype, 1, 1, 1);
  EXPECT_TRUE(place.has_whole_guards());
  for (std::int64_t row = 0; row < place.rows(); ++row) {
    for (std::int64_t head = 0; head < place.heads(); ++head) {
      for (std::int64_t d = 0; d < place.dim(); ++d) {
        rounded.set(0, 0, 0, all.get(row_begin + row, head, d));
        ASSERT_EQ(place.bits(row, head, d), rounded.bits(0, 0, 0))
            << "row " << row_begin + row << " head " << head << " dim " << d;
      }
    }
  }
}

/// Rows with places of their own are not touched in `local`, the others are those of `all`.
void expect_rest_of(const GuardedTensor& local, const GuardedTensor& all,
                    const InFlightKeys& coming) {
  const GuardedTensor untouched(local.view().dtype, 1, 1, 1);
  for (std::int32_t row = 0; row < kRowsK; ++row) {
    bool is_elsewhere = false;
    for (std::size_t i = 0; i < coming.parts.size(); ++i) {
      const Range& rows = coming.parts[i].rows;
      is_elsewhere |= i != 1 && row >= rows.begin && row < rows.end;
    }
    for (std::int64_t head = 0; head < local.heads(); ++head) {
      for (std::int64_t d = 0; d < local.dim(); ++d) {
        ASSERT_EQ(local.bits(row, head, d),
                  is_elsewhere ? untouched.bits(0, 0, 0) : all.bits(row, head, d))
            << "row " << row << " head " << head << " dim " << d;
      }
    }
  }
}

TEST_P(BackwardArrivalTest, PartsHavePlacesOfTheirOwn) {
  for (const std::int32_t heads_per_item : {2, 1, 0}) {
    // More parts than the kernel in front of the main one has room for among its arguments, or few.
    const InFlightKeys coming = three_sources(heads_per_item == 2 ? 90 : 9);
    BackwardCase test = base();
    test.tuning.heads_per_item = heads_per_item;
    test.has_float_gradients = true;
    ArrivalCall call(test, coming);
    const Stream sending;
    RandomStream random(1);
    const std::vector<SendStep> steps = call.sender().shuffled_steps(random, 100'000);
    for (int round = 0; round < 3; ++round) {
      BackwardOutputs seen(test);
      PartPlaces places(test, coming);
      call.sender().take_away_sync();
      if (round == 0) call.sender().send(steps, sending.handle());
      constexpr ArrivalCall::Way kWays[] = {ArrivalCall::Way::Awaited, ArrivalCall::Way::Behind,
                                            ArrivalCall::Way::Pushed};
      const KeyArrivals arrivals =
          round == 2 ? KeyArrivals{} : call.sender().arrivals(round == 0 ? kSecond : 0);
      call.run(call.args_of(seen), arrivals, kWays[round], steps, sending, nullptr, {},
               places.gradients);
      ArrivalCall::download_sync(seen);
      call.judge_queries(seen);
      for (std::size_t i = 0; i < coming.parts.size(); ++i) {
        if (i == 1) continue;
        places.dk[i].download_sync();
        places.dv[i].download_sync();
        expect_rows_of(places.dk[i], call.expected().dk, coming.parts[i].rows.begin);
        expect_rows_of(places.dv[i], call.expected().dv, coming.parts[i].rows.begin);
        if (HasFailure()) return;
      }
      expect_rest_of(seen.dk, call.expected().dk, coming);
      expect_rest_of(seen.dv, call.expected().dv, coming);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Instances, BackwardArrivalTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            ::testing::Values(64, 128, 192, 256),
                                            ::testing::Bool()));

using BackwardArrivalRefusalTest = GpuTest;

TEST_F(BackwardArrivalRefusalTest, OrderedCallsGiveTheBitsOfPlainOnes) {
  const BackwardCase test = case_of(DType::BFloat16, 128, true);
  ArrivalCall call(test);
  RandomStream random(1);
  call.sender().send(call.sender().shuffled_steps(random, 0), nullptr);
  BackwardOutputs plain(test);
  run_backward_sync(test, call.inputs(), plain);
  expect_same_gradients(plain, call.expected());
}

TEST_F(BackwardArrivalRefusalTest, SaysWhichPlaceIsWrong) {
  const BackwardCase test = case_of(DType::BFloat16, 64, false);
  ArrivalCall call(test);
  const BackwardOutputs outputs(test);
  const BackwardArgs args = call.args_of(outputs);
  const PartPlaces places(test, three_sources());
  const auto refuses = [&](const BackwardArgs& with, auto poison) {
    std::vector<PartGradients> gradients = places.gradients;
    poison(gradients);
    EXPECT_THROW(
        call.prepared().begin_in_flight(
            with, {}, {.keys = call.sender().arrivals(0), .gradients = gradients}, nullptr),
        InvalidArgument);
  };
  refuses(args, [](auto& gradients) { gradients.pop_back(); });
  refuses(args, [](auto& gradients) { gradients[0].dv.data = nullptr; });
  refuses(args, [](auto& gradients) { gradients[0].dk.dtype = DType::Float16; });
  refuses(args, [](auto& gradients) { gradients[0].dk.stride[0] += 2; });
  const auto plain = find_backend("", 0)->prepare_backward(args, {});
  EXPECT_THROW(plain->begin_in_flight(args, {}, {.keys = call.sender().arrivals(0)}, nullptr),
               InvalidArgument);
  BackwardCase adding = test;
  adding.is_accumulating = true;
  const BackwardOutputs sums(adding);
  BackwardArgs with = args;
  sums.put_into(with);
  with.is_accumulating = true;
  refuses(with, [](auto&) {});
}

}  // namespace
}  // namespace magi::test
