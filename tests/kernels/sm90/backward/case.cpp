// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/backward/case.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/attention/backend.hpp"

namespace magi::test {
namespace {

constexpr std::size_t kGuardBytes = 4096;

std::shared_ptr<const PreparedBackward> prepare(const BackwardCase& test,
                                                const BackwardInputs& inputs,
                                                const BackwardOutputs& outputs) {
  BackwardArgs args = inputs.args(test);
  outputs.put_into(args);
  return find_backend(test.backend, args.q.device)->prepare_backward(args, test.tuning);
}

void run(const BackwardCase& test, const BackwardInputs& inputs, const PreparedBackward& prepared,
         const GuardedWorkspace& workspace, BackwardOutputs& outputs) {
  BackwardArgs args = inputs.args(test);
  outputs.put_into(args);
  prepared.run(args, workspace.view(), nullptr);
  cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  outputs.download_sync();
}

/// What the gradients of a case are held against.
class Judge {
 public:
  Judge(const BackwardCase& test, const BackwardInputs& inputs) : start_(test) {
    const auto counts = reference::counts_of(test.mask);
    for (std::int32_t head = 0; head < test.heads_kv; ++head) {
      const std::int32_t group = inputs.shape.group();
      const auto of_queries = [&](const GuardedTensor& tensor) {
        return heads_of(tensor, head * group, group);
      };
      GradientRule::Given given{.dout = of_queries(inputs.dout)};
      if (test.has_dlse) given.dlse = of_queries(inputs.dlse);
      if (!test.has_float_out) given.stored = of_queries(inputs.out);
      rules_.emplace_back(inputs.dense(head), counts, test.type, std::move(given));
    }
  }

  void check(const BackwardOutputs& seen, Gradients which) const {
    EXPECT_TRUE(seen.has_whole_guards()) << "a gradient was written outside its elements";
    std::int32_t head = 0;
    for (const GradientRule& rule : rules_) {
      if (which == Gradients::All) rule.check_head(seen, head, &start_);
      if (which == Gradients::Queries) rule.check_queries(seen, head, &start_);
      ++head;
    }
  }

 private:
  const BackwardOutputs start_;
  std::vector<GradientRule> rules_;
};

}  // namespace

std::ostream& operator<<(std::ostream& stream, const BackwardCase& test) {
  stream << test.backend << " seed " << test.seed << ' ' << test.shape() << " packed "
         << test.tuning.packed_heads << " per item " << test.tuning.heads_per_item << " margin "
         << test.tuning.sm_margin << (test.tuning.is_deterministic ? "" : " fast") << " walk "
         << static_cast<int>(test.tuning.head_walk) << " section " << test.tuning.section_heads
         << (test.has_float_out ? " float out" : "")
         << (test.has_float_gradients ? " float gradients" : "")
         << (test.is_accumulating ? " accumulating" : "")
         << (test.is_writing_keys ? " writing keys" : "") << (test.has_dlse ? " dlse" : "")
         << " slices";
  for (const BandSlice& s : test.mask.slices) {
    stream << " {" << s.q0 << ", " << s.q1 << ", " << s.k0 << ", " << s.k1 << ", " << s.d_min
           << ", " << s.d_max << "}";
  }
  return stream;
}

BackwardInputs::BackwardInputs(const BackwardCase& test)
    : GuardedInputs(test.shape(), test.seed, test.magnitude),
      out(test.out_type(), test.mask.rows_q, test.heads_q, test.dim_v, test.layout),
      lse(DType::Float32, test.mask.rows_q, test.heads_q, 1, test.layout),
      dout(test.out_type(), test.mask.rows_q, test.heads_q, test.dim_v, test.layout),
      dlse(DType::Float32, test.mask.rows_q, test.heads_q, 1, test.layout) {
  RandomStream random(test.seed + 2000);
  fill_random(dout, random, test.magnitude);
  fill_random(dlse, random, 1.0);
  const auto counts = reference::counts_of(test.mask);
  for (std::int32_t head = 0; head < test.heads_kv; ++head) {
    const reference::DenseOutput truth = dense_forward(dense(head), counts);
    set_heads(out, head * shape.group(), shape.group(), truth.out);
    set_heads(lse, head * shape.group(), shape.group(), truth.lse);
  }
  out.upload_sync();
  lse.upload_sync();
}

BackwardArgs BackwardInputs::args(const BackwardCase& test) const {
  BackwardArgs args;
  put_into(args);
  args.slices = test.mask.slices;
  args.out = out.view();
  args.lse = lse.view(2);
  args.dout = dout.view();
  if (test.has_dlse) args.dlse = dlse.view(2);
  args.is_accumulating = test.is_accumulating;
  args.is_writing_keys = test.is_writing_keys;
  return args;
}

BackwardOutputs::BackwardOutputs(const BackwardCase& test)
    : GuardedGradients(test.shape(), test.gradient_type()) {
  RandomStream random(test.seed + 1);
  if (!test.is_accumulating) return;
  fill_random(dq, random, 1.0);
  if (dsink) fill_random(*dsink, random, 1.0);
  if (!test.adds_keys()) return;
  fill_random(dk, random, 1.0);
  fill_random(dv, random, 1.0);
}

GuardedWorkspace::GuardedWorkspace(std::int64_t size_bytes)
    : size_bytes_(size_bytes), buffer_(static_cast<std::size_t>(size_bytes) + 2 * kGuardBytes) {
  buffer_.fill(0xff, nullptr);
}

DeviceWorkspace GuardedWorkspace::view() const {
  return {static_cast<std::uint8_t*>(buffer_.data()) + kGuardBytes, size_bytes_};
}

bool GuardedWorkspace::has_whole_guards() const {
  const auto* begin = static_cast<const std::uint8_t*>(buffer_.data());
  for (const std::size_t offset : {std::size_t{0}, buffer_.size_bytes() - kGuardBytes}) {
    for (const auto byte : to_host_sync<std::uint8_t>(begin + offset, kGuardBytes)) {
      if (byte != 0xff) return false;
    }
  }
  return true;
}

void run_backward_sync(const BackwardCase& test, const BackwardInputs& inputs,
                       BackwardOutputs& outputs) {
  const auto prepared = prepare(test, inputs, outputs);
  run(test, inputs, *prepared, GuardedWorkspace(prepared->workspace_bytes()), outputs);
}

std::function<void(const BackwardOutputs& seen, Gradients which)> make_judge(
    const BackwardCase& test, const BackwardInputs& inputs) {
  return [judge = std::make_shared<const Judge>(test, inputs)](
             const BackwardOutputs& seen, Gradients which) { judge->check(seen, which); };
}

void check_backward(const BackwardCase& test) {
  SCOPED_TRACE(::testing::Message() << test);
  const BackwardInputs inputs(test);
  BackwardOutputs outputs(test);
  const auto prepared = prepare(test, inputs, outputs);
  const GuardedWorkspace workspace(prepared->workspace_bytes());
  ASSERT_NO_THROW(run(test, inputs, *prepared, workspace, outputs));
  const Judge judge(test, inputs);
  judge.check(outputs, Gradients::All);
  EXPECT_TRUE(workspace.has_whole_guards()) << "memory beside the workspace was written";
  BackwardOutputs again(test);
  ASSERT_NO_THROW(run(test, inputs, *prepared, workspace, again));
  if (test.tuning.is_deterministic) {
    expect_same_gradients(outputs, again);
  } else {
    expect_same_but_dq(outputs, again);
    judge.check(again, Gradients::Queries);
  }
}

}  // namespace magi::test
