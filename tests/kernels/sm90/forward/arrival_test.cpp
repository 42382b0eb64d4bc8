// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "cuda/stream.hpp"
#include "kernels/attention/backend.hpp"
#include "magi/error.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/graph.hpp"
#include "support/gpu/guarded_tensor.hpp"
#include "support/gpu/instance_dims.hpp"
#include "support/gpu/key_sender.hpp"
#include "support/gpu/random_tensors.hpp"
#include "support/random_streams.hpp"

// Keys that come before, while and after the launch that needs them: the same bits as where they
// had always been there. Schedules: ForwardArrivalsTest.
namespace magi::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int32_t kRowsQ = 900;
constexpr std::int32_t kRowsK = 2600;
constexpr std::int32_t kHeadsQ = 8;
constexpr std::int32_t kHeadsKv = 4;

/// Own keys in the middle, those of three sources around them, gaps that nobody writes.
InFlightKeys three_sources() {
  InFlightKeys coming{.num_sources = 3, .num_sections = 2};
  coming.parts = {{{0, 300}, 0}, {{310, 700}, 2}};
  for (std::int32_t row = 1500; row < kRowsK; row += 140) {
    coming.parts.push_back({{row, std::min(row + 137, kRowsK)}, (row / 140) % 3});
  }
  return coming;
}

/// Rows with own keys alone, with those of one source and of all; some have very many.
std::vector<BandSlice> slices_of_test() {
  return {band_slice({0, 250}, {720, 1490}, MaskType::Causal),
          band_slice({250, 400}, {20, 290}, MaskType::Full),
          band_slice({250, 400}, {1600, 1640}, MaskType::Full),
          band_slice({400, 640}, {600, 1700}, MaskType::BidirectionalCausal),
          band_slice({640, 700}, {0, kRowsK}, MaskType::Causal),
          band_slice({700, 900}, {900, 1100}, MaskType::Full)};
}

/// What a call asks for besides out and lse in the input type.
struct Features {
  bool is_merging = false;  ///< into float32 out
  std::int32_t num_sinks = 0;
  bool has_max_logits = false;
  double softcap = 0.0;
  std::int32_t max_pieces = 1;
};

struct Outputs {
  Outputs(DType type, std::int32_t dim_v, const Features& features)
      : out(features.is_merging ? DType::Float32 : type, kRowsQ, kHeadsQ, dim_v),
        lse(DType::Float32, kRowsQ, kHeadsQ, 1),
        max_logits(DType::Float32, kHeadsQ, 1, 1) {
    RandomStream random(11);
    GuardedTensor* tensors[] = {&out, &lse, &max_logits};
    for (GuardedTensor* tensor : tensors) {
      if (features.is_merging) fill_random(*tensor, random, 1.0);
      tensor->upload_sync();
    }
  }
  void download_sync() {
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (GuardedTensor* tensor : {&out, &lse, &max_logits}) tensor->download_sync();
  }

  GuardedTensor out, lse, max_logits;
};

/// Runs the parts one after the other, with the wait for all keys where it belongs.
void run_in_parts(const PreparedForward& prepared, const ForwardArgs& args,
                  const DeviceWorkspace& workspace, const KeyArrivals& arrivals,
                  cudaStream_t stream, const std::function<void()>& await) {
  const auto run = prepared.begin_in_flight(args, workspace, arrivals, stream);
  run->attend();
  await();
  run->finish();
}

/// A call, prepared for keys that come, and what it gives where they are there from the start.
class ArrivalCall {
 public:
  ArrivalCall(DType type, const InstanceDims& dims, const Features& features)
      : type_(type),
        dim_v_(dims.v),
        features_(features),
        q_(type, kRowsQ, kHeadsQ, dims.qk),
        k_(type, kRowsK, kHeadsKv, dims.qk),
        v_(type, kRowsK, kHeadsKv, dims.v),
        sink_(DType::Float32, 1, std::max(features.num_sinks, 1), kHeadsQ),
        expected_(outputs()) {
    RandomStream random(3);
    for (GuardedTensor* tensor : {&q_, &k_, &v_, &sink_}) fill_random(*tensor, random, 1.0);
    const ForwardTuning tuning{.max_pieces = features.max_pieces, .piece_cost = 4};
    const ForwardArgs args = args_of(expected_);
    const auto backend = find_backend("", 0);
    backend->prepare_forward(args, tuning)->run(args, {}, nullptr);
    expected_.download_sync();
    prepared_ = backend->prepare_in_flight_forward(args, tuning, three_sources());
    sender_ = std::make_unique<KeySender>(args.k, args.v, three_sources());
  }

  Outputs outputs() const { return {type_, dim_v_, features_}; }
  KeySender& sender() { return *sender_; }
  const PreparedForward& prepared() const { return *prepared_; }

  ForwardArgs args_of(const Outputs& outputs) const {
    ForwardArgs args{.q = q_.view(), .k = k_.view(), .v = v_.view(), .slices = slices_};
    args.out = outputs.out.view();
    args.lse = outputs.lse.view(2);
    args.is_merging = features_.is_merging;
    args.params.softcap = features_.softcap;
    if (features_.has_max_logits) args.max_logits = outputs.max_logits.view(1);
    if (features_.num_sinks > 0) args.sink = sink_view(sink_, SinkLayout::SinkHead);
    return args;
  }

  /// Runs into fresh outputs on `stream`, and awaits keys that are on their way.
  void expect_right(std::int64_t spin_budget_ns, cudaStream_t stream,
                    const DeviceWorkspace& workspace = {}) {
    Outputs seen = outputs();
    run_in_parts(*prepared_, args_of(seen), workspace, sender_->arrivals(spin_budget_ns), stream,
                 [&] { sender_->await(stream); });
    expect_right(seen);
  }
  /// The same, where the steps are sent when what is before the wait is over.
  void expect_right_behind(const std::vector<SendStep>& steps, const Stream& sending,
                           cudaStream_t stream, const DeviceWorkspace& workspace = {}) {
    Outputs seen = outputs();
    run_in_parts(*prepared_, args_of(seen), workspace, sender_->arrivals(0), stream,
                 [&] { sender_->send_behind(steps, sending, stream); });
    expect_right(seen);
  }
  void expect_right(Outputs& seen) const {
    seen.download_sync();
    expect_same_bits(seen.out, expected_.out);
    expect_same_bits(seen.lse, expected_.lse);
    if (features_.has_max_logits) expect_same_bits(seen.max_logits, expected_.max_logits);
    EXPECT_TRUE(seen.out.has_whole_guards() && seen.lse.has_whole_guards());
  }

 private:
  DType type_;
  std::int32_t dim_v_;
  Features features_;
  std::vector<BandSlice> slices_ = slices_of_test();
  GuardedTensor q_, k_, v_, sink_;
  Outputs expected_;
  std::shared_ptr<const PreparedForward> prepared_;
  std::unique_ptr<KeySender> sender_;
};

/// Items that a run deferred, in the workspace of a call without pieces, which held 0xff.
std::int64_t count_deferred(const DeviceBuffer& workspace) {
  const auto items =
      to_host_sync<std::int32_t>(workspace.data(), workspace.size_bytes() / sizeof(std::int32_t));
  return std::count_if(items.begin(), items.end(), [](std::int32_t item) { return item >= 0; });
}

class ForwardArrivalTest : public GpuTest,
                           public ::testing::WithParamInterface<std::tuple<DType, InstanceDims>> {
 protected:
  ArrivalCall call_with(const Features& features) const {
    return {std::get<0>(GetParam()), std::get<1>(GetParam()), features};
  }
  /// All ways to come, with a call of these features.
  void check_all(const Features& features) {
    ArrivalCall call = call_with(features);
    const Stream sending;
    const Stream stream;
    for (RandomStream& random : testing::RandomStreams(8)) {
      const std::vector<SendStep> steps = call.sender().shuffled_steps(random, 100'000);
      const auto middle =
          steps.begin() + random.between(0, static_cast<std::int32_t>(steps.size()));
      call.sender().take_away_sync();
      call.sender().send(steps, sending.handle());
      call.expect_right(kSecond, stream.handle());
      call.sender().take_away_sync();
      call.expect_right_behind(steps, sending, stream.handle());
      call.sender().take_away_sync();
      call.sender().send({steps.begin(), middle}, sending.handle());
      const std::vector<SendStep> late(middle, steps.end());
      call.expect_right_behind(late, sending, stream.handle());
    }
  }
};

TEST_P(ForwardArrivalTest, ItemsAreDeferredOnlyWhereKeysAreLate) {
  ArrivalCall call = call_with({});
  const Stream sending;
  RandomStream random(1);
  const std::vector<SendStep> steps = call.sender().shuffled_steps(random, 0);
  const DeviceBuffer workspace(static_cast<std::size_t>(call.prepared().workspace_bytes()));
  const DeviceWorkspace given{workspace.data(), call.prepared().workspace_bytes()};
  const auto num_items = given.size_bytes / std::int64_t{sizeof(std::int32_t)};
  ASSERT_GT(num_items, 10);
  for (int round = 0; round < 3; ++round) {
    workspace.fill(0xff, nullptr);
    call.sender().take_away_sync();
    call.sender().send(steps, nullptr);
    call.expect_right(0, nullptr, given);
    EXPECT_EQ(count_deferred(workspace), 0);
    call.sender().take_away_sync();
    call.expect_right_behind(steps, sending, nullptr, given);
    EXPECT_EQ(count_deferred(workspace), num_items);
  }
}

TEST_P(ForwardArrivalTest, PlainCalls) { check_all({}); }

TEST_P(ForwardArrivalTest, FloatOutMergingAndSinks) {
  check_all({.is_merging = true, .num_sinks = 2});
}

TEST_P(ForwardArrivalTest, MaxLogitsAndSoftcap) {
  check_all({.has_max_logits = true, .softcap = 15.0});
}

TEST_P(ForwardArrivalTest, PiecesOfLongRows) {
  check_all({.max_pieces = 200});
  check_all({.num_sinks = 1, .has_max_logits = true, .max_pieces = 200});
}

TEST_P(ForwardArrivalTest, KeysThatAreThereNeedNoArrivals) {
  ArrivalCall call = call_with({});
  RandomStream random(1);
  call.sender().send(call.sender().shuffled_steps(random, 0), nullptr);
  Outputs seen = call.outputs();
  call.prepared().run(call.args_of(seen), {}, nullptr);
  call.expect_right(seen);
}

TEST_P(ForwardArrivalTest, KeysThatAreAwaitedAtTheStartNeedNoFlags) {
  const Stream stream;
  for (const Features& features : {Features{}, Features{.num_sinks = 1, .max_pieces = 200}}) {
    ArrivalCall call = call_with(features);
    for (int round = 0; round < 3; ++round) {
      call.sender().take_away_sync();
      Outputs seen = call.outputs();
      const auto run = call.prepared().begin_in_flight(call.args_of(seen), {}, {}, stream.handle());
      call.sender().send(call.sender().all_steps(), stream.handle());
      run->attend();
      run->finish();
      call.expect_right(seen);
    }
  }
}

TEST_P(ForwardArrivalTest, GraphsAreReplayedWithKeysThatComeAnew) {
  ArrivalCall call = call_with({});
  const Stream sending;
  const Stream captured;
  Outputs seen = call.outputs();
  const ForwardArgs args = call.args_of(seen);
  const Graph graph(captured.handle(), [&] {
    run_in_parts(call.prepared(), args, {}, call.sender().arrivals(50'000), captured.handle(),
                 [&] { call.sender().await(captured.handle()); });
  });
  for (RandomStream& random : testing::RandomStreams(10)) {
    call.sender().take_away_sync();
    cuda_check(cudaMemset(args.out.data, 0xff, static_cast<std::size_t>(args.out.num_elements())),
               "cudaMemset");
    call.sender().send(call.sender().shuffled_steps(random, 60'000), sending.handle());
    graph.launch(captured.handle());
    call.expect_right(seen);
  }
}

/// The keys' tensors hold NaN where the own rows would be.
TEST_P(ForwardArrivalTest, OwnKeysLieInTensorsOfTheirOwn) {
  const auto [type, dims] = GetParam();
  const InFlightKeys coming{
      .parts = {{{1500, 2000}, 0}, {{2010, kRowsK}, 1}}, .num_sources = 2, .own_rows = 777};
  RandomStream random(5);
  GuardedTensor q(type, kRowsQ, kHeadsQ, dims.qk);
  GuardedTensor k(type, kRowsK, kHeadsKv, dims.qk);
  GuardedTensor v(type, kRowsK, kHeadsKv, dims.v);
  for (GuardedTensor* tensor : {&q, &k, &v}) fill_random(*tensor, random, 1.0);
  const std::vector<BandSlice> slices = slices_of_test();
  Outputs expected(type, dims.v, {}), seen(type, dims.v, {});
  ForwardArgs args{.q = q.view(), .k = k.view(), .v = v.view(), .slices = slices};
  args.out = expected.out.view();
  args.lse = expected.lse.view(2);
  const auto backend = find_backend("", 0);
  // The same list over one tensor: a list without own rows joins keys on both sides.
  const auto prepared = backend->prepare_in_flight_forward(args, {}, coming);
  prepared->run(args, {}, nullptr);
  expected.download_sync();
  args.out = seen.out.view();
  args.lse = seen.lse.view(2);
  const GuardedTensor own_k = take_first_rows_sync(k, coming.own_rows, Layout::PaddedRows);
  const GuardedTensor own_v = take_first_rows_sync(v, coming.own_rows, Layout::HeadMajor);
  KeySender sender(args.k, args.v, coming);
  const Stream sending;
  for (int round = 0; round < 4; ++round) {
    const bool is_at_start = round == 3;
    sender.take_away_sync();
    if (!is_at_start) sender.send(sender.shuffled_steps(random, 100'000), sending.handle());
    KeyArrivals arrivals = is_at_start ? KeyArrivals{} : sender.arrivals(round == 0 ? 0 : kSecond);
    EXPECT_THROW(prepared->begin_in_flight(args, {}, arrivals, nullptr), InvalidArgument);
    arrivals.own_k = own_k.view();
    arrivals.own_v = own_v.view();
    if (is_at_start) sender.send(sender.all_steps(), nullptr);
    run_in_parts(*prepared, args, {}, arrivals, nullptr, [&] {
      if (!is_at_start) sender.await(nullptr);
    });
    seen.download_sync();
    expect_same_bits(seen.out, expected.out);
    expect_same_bits(seen.lse, expected.lse);
  }
}

TEST_P(ForwardArrivalTest, RunsAfterOneThatWasGivenUpAreRight) {
  ArrivalCall call = call_with({});
  const Stream sending;
  RandomStream random(1);
  const std::vector<SendStep> steps = call.sender().shuffled_steps(random, 0);
  const Outputs seen = call.outputs();
  call.prepared()
      .begin_in_flight(call.args_of(seen), {}, call.sender().arrivals(0), nullptr)
      ->attend();
  for (int round = 0; round < 2; ++round) {
    call.sender().take_away_sync();
    call.expect_right_behind(steps, sending, nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Instances, ForwardArrivalTest,
                         ::testing::Combine(::testing::Values(DType::BFloat16, DType::Float16),
                                            forward_dims()));

using ForwardArrivalRefusalTest = GpuTest;

TEST_F(ForwardArrivalRefusalTest, SaysWhatIsMissing) {
  ArrivalCall call(DType::BFloat16, {64, 64}, {});
  const Outputs outputs = call.outputs();
  const ForwardArgs args = call.args_of(outputs);
  const auto backend = find_backend("", 0);
  const KeyArrivals good = call.sender().arrivals(0);
  const auto plain = backend->prepare_forward(args, {});
  EXPECT_THROW(plain->begin_in_flight(args, {}, good, nullptr), InvalidArgument);
  InFlightKeys coming = three_sources();
  coming.num_sections = 3;
  EXPECT_THROW(backend->prepare_in_flight_forward(args, {}, coming), InvalidArgument);
  KeyArrivals bad = good;
  bad.flags = nullptr;
  EXPECT_THROW(call.prepared().begin_in_flight(args, {}, bad, nullptr), InvalidArgument);
  bad = good;
  bad.spin_budget_ns = -1;
  EXPECT_THROW(call.prepared().begin_in_flight(args, {}, bad, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace magi::test
