// SPDX-License-Identifier: Apache-2.0
// The C ABI while memory runs out: each case runs a chain of calls in which one allocation fails,
// or all from one on. The call that meets it says MAGI_OUT_OF_MEMORY or does without, what was made
// before can be destroyed, and the same chain then gives what it gave before.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "capi/owned_handles.hpp"
#include "capi/problem.hpp"
#include "magi/mask_builders.hpp"
#include "reliability/case_flags.hpp"

namespace {

// Allocations until one fails; below zero none does.
std::atomic<std::int64_t> countdown = -1;
std::atomic<bool> is_failing_on = false;  // whether all later ones fail too
std::atomic<std::int64_t> num_allocations = 0;
std::atomic<std::int64_t> num_failures = 0;

bool fails() {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (countdown.load(std::memory_order_relaxed) < 0) return false;
  const std::int64_t left = countdown.fetch_sub(1, std::memory_order_relaxed);
  if (left > 0) return false;
  if (is_failing_on) countdown = 0;
  num_failures.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void* take(std::size_t size, std::size_t alignment) {
  if (fails()) return nullptr;
  const std::size_t rounded = (std::max<std::size_t>(size, 1) + alignment - 1) / alignment;
  return std::aligned_alloc(alignment, rounded * alignment);
}

void* take_or_throw(std::size_t size, std::size_t alignment) {
  void* const data = take(size, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t size) { return take_or_throw(size, kUsual); }
void* operator new[](std::size_t size) { return take_or_throw(size, kUsual); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return take(size, kUsual); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return take(size, kUsual);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return take_or_throw(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace magi::capi_test {
namespace {

/// What a chain of calls leaves: the status of the first that did not go well, and some bytes.
struct Trace {
  magi_status status = MAGI_OK;
  std::uint64_t bytes = 0;

  void add(const void* data, std::size_t size) {
    const auto* byte = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) bytes = (bytes ^ byte[i]) * 1099511628211u;
  }
};

/// Calls make(&handle) unless an earlier call of the chain failed.
template <typename Handle, typename Make>
Owned<Handle> then(Trace& trace, const Make& make) {
  Handle* handle = nullptr;
  if (trace.status == MAGI_OK) trace.status = make(&handle);
  return Owned<Handle>(handle);
}

template <typename Call>
void then_call(Trace& trace, const Call& call) {
  if (trace.status == MAGI_OK) trace.status = call();
}

template <typename Make>
void then_bytes(Trace& trace, const Make& make) {
  const auto buffer = then<magi_buffer>(trace, make);
  if (trace.status != MAGI_OK) return;
  trace.add(magi_buffer_data(buffer.get()), magi_buffer_size_bytes(buffer.get()));
}

constexpr std::int32_t kSlices[] = {0, 20, 0, 20, -(1 << 30), 0, 20, 40, 0, 40, -8, 4};
constexpr std::int32_t kDocuments[] = {0, 9, 22, 40};

Owned<magi_mask> make_mask(Trace& trace) {
  return then<magi_mask>(
      trace, [](auto** m) { return magi_mask_from_slices(kSlices, 2, kRows, kRows, m); });
}

void run_masks(Trace& trace, Problem&) {
  const auto mask = make_mask(trace);
  const magi_mask* given = mask.get();
  const auto text = then<magi_buffer>(trace, [&](auto** b) { return magi_mask_to_json(given, b); });
  const auto read = then<magi_mask>(trace, [&](auto** m) {
    return magi_mask_from_json(static_cast<const char*>(magi_buffer_data(text.get())),
                               magi_buffer_size_bytes(text.get()), m);
  });
  then_bytes(trace, [&](auto** b) { return magi_mask_slices(read.get(), b); });
  then_bytes(trace, [&](auto** b) { return magi_mask_typed_slices(given, b); });
  then_bytes(trace, [&](auto** b) { return magi_mask_draw(given, "a title", b); });
  const std::array<std::uint8_t, 12> matrix{1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1};
  const auto drawn = then<magi_mask>(
      trace, [&](auto** m) { return magi_mask_from_matrix(matrix.data(), 3, 4, m); });
  then_bytes(trace, [&](auto** b) { return magi_mask_slices(drawn.get(), b); });
  const std::int32_t sums[] = {0, 8, 12}, prefixes[] = {3, 2};
  const magi_form_field fields[] = {{"cu_seqlens", sums, 3, nullptr, 0},
                                    {"prefix_lengths", prefixes, 2, nullptr, 0}};
  const auto formed = then<magi_mask>(
      trace, [&](auto** m) { return magi_mask_from_form("prefix_lm", fields, 2, m); });
  then_bytes(trace, [&](auto** b) { return magi_mask_slices(formed.get(), b); });
}

magi_plan_config config_of(std::int32_t num_ranks) {
  magi_plan_config config = config_for(num_ranks);
  config.element_bytes = 4;
  config.overlap_degree = 2;
  return config;
}

void run_plans(Trace& trace, Problem&) {
  const auto mask = make_mask(trace);
  const magi_plan_config config = config_of(3);
  const auto plan =
      then<magi_plan>(trace, [&](auto** p) { return magi_plan_create(mask.get(), &config, p); });
  const auto text =
      then<magi_buffer>(trace, [&](auto** b) { return magi_plan_to_json(plan.get(), b); });
  const auto read = then<magi_plan>(trace, [&](auto** p) {
    return magi_plan_from_json(static_cast<const char*>(magi_buffer_data(text.get())),
                               magi_buffer_size_bytes(text.get()), p);
  });
  then_bytes(trace, [&](auto** b) { return magi_plan_to_json(read.get(), b); });
  then_bytes(trace, [&](auto** b) { return magi_plan_describe(plan.get(), b); });
  then_bytes(trace, [&](auto** b) { return magi_plan_check(plan.get(), b); });
  for (const std::int32_t picture :
       {MAGI_PICTURE_MASK, MAGI_PICTURE_PLACEMENT, MAGI_PICTURE_TRAFFIC, MAGI_PICTURE_TIMELINE}) {
    then_bytes(trace, [&](auto** b) { return magi_plan_draw(plan.get(), picture, nullptr, b); });
  }
}

void add_results(Trace& trace, const Problem& problem) {
  for (const auto array :
       {&Problem::out, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv, &Problem::dsink}) {
    const std::vector<float>& values = (problem.*array).values;
    trace.add(values.data(), values.size() * sizeof(float));
  }
}

void run_attention(Trace& trace, Problem& problem) {
  const auto mask = make_mask(trace);
  then_call(trace, [&] {
    return magi_flex_attention_forward(mask.get(), &problem.inputs, &problem.result, nullptr);
  });
  then_call(trace, [&] {
    return magi_flex_attention_backward(mask.get(), &problem.inputs, &problem.result,
                                        &problem.gradients, nullptr);
  });
  if (trace.status == MAGI_OK) add_results(trace, problem);
}

void run_ranks_of_plan(Trace& trace, Problem& problem) {
  const auto mask = make_mask(trace);
  const magi_plan_config config = config_of(1);
  const auto plan =
      then<magi_plan>(trace, [&](auto** p) { return magi_plan_create(mask.get(), &config, p); });
  magi_comm_options options;
  magi_comm_options_init(&options);
  const auto alone = then<magi_communicator>(
      trace, [&](auto** c) { return magi_thread_group_create(1, &options, c); });
  const auto placement =
      then<magi_placement>(trace, [&](auto** p) { return magi_plan_placement_q(plan.get(), p); });
  Array& local = problem.dq;
  then_call(trace, [&] {
    return magi_dispatch(&problem.q.tensor, placement.get(), 0, 0.0, &local.tensor, nullptr);
  });
  then_call(trace, [&] {
    return magi_undispatch(&local.tensor, placement.get(), alone.get(), &problem.out.tensor,
                           nullptr);
  });
  const auto attention = then<magi_attention>(
      trace, [&](auto** a) { return magi_attention_create(plan.get(), alone.get(), a); });
  for (int pass = 0; pass < 2; ++pass) {
    then_call(trace, [&] {
      return magi_attention_forward(attention.get(), &problem.inputs, &problem.result, nullptr);
    });
    then_call(trace, [&] {
      return magi_attention_backward(attention.get(), &problem.inputs, &problem.result,
                                     &problem.gradients, nullptr);
    });
  }
  if (trace.status == MAGI_OK) add_results(trace, problem);
}

/// A table of functions that are never called, whose context counts how often it is given back.
magi_attention_backend spare_backend(int& num_destroys) {
  magi_attention_backend table{};
  table.struct_size = sizeof table;
  table.context = &num_destroys;
  table.name = "spare";
  table.serves_cpu = 1;
  table.limits.struct_size = sizeof table.limits;
  table.limits.min_dim_qk = table.limits.max_dim_qk = table.limits.dim_qk_multiple = 8;
  table.limits.min_dim_v = table.limits.max_dim_v = table.limits.dim_v_multiple = 8;
  table.limits.dtypes = 1 << MAGI_FLOAT32;
  table.limits.stride_bytes = 4;
  table.plan = [](auto...) { return std::int32_t{MAGI_OK}; };
  table.forward = [](auto...) { return std::int32_t{MAGI_OK}; };
  table.backward = [](auto...) { return std::int32_t{MAGI_OK}; };
  table.release = [](auto...) {};
  table.last_error = [](auto...) { return ""; };
  table.destroy = [](void* context) { ++*static_cast<int*>(context); };
  return table;
}

/// The context of a backend stays the caller's where the registration fails.
void run_backends(Trace& trace, Problem&) {
  int num_destroys = 0;
  const magi_attention_backend table = spare_backend(num_destroys);
  then_call(trace, [&] { return magi_attention_backend_register(&table); });
  const bool is_registered = trace.status == MAGI_OK;
  magi_attention_limits limits{};
  limits.struct_size = sizeof limits;
  then_call(trace, [&] { return magi_attention_get_limits("spare", MAGI_CPU_DEVICE, &limits); });
  trace.add(&limits, sizeof limits);
  if (is_registered) magi_attention_backend_unregister("spare");
  if (num_destroys != (is_registered ? 1 : 0)) trace.status = MAGI_INTERNAL_ERROR;
}

struct Chain {
  const char* name;
  void (*run)(Trace&, Problem&);
};
constexpr Chain kChains[] = {{"masks", run_masks},
                             {"plans", run_plans},
                             {"attention", run_attention},
                             {"backends", run_backends},
                             {"ranks", run_ranks_of_plan}};

Trace run_chain(const Chain& chain, Problem& problem, std::int64_t failing_allocation) {
  Trace trace;
  countdown = failing_allocation;
  chain.run(trace, problem);
  countdown = -1;
  return trace;
}

int run(const testing::CaseFlags& flags) {
  Problem problem;
  std::array<Trace, std::size(kChains)> usual;
  std::array<std::int64_t, std::size(kChains)> lengths{};
  for (std::size_t c = 0; c < std::size(kChains); ++c) {
    run_chain(kChains[c], problem, -1);  // what is made once for all calls
    const std::int64_t before = num_allocations;
    usual[c] = run_chain(kChains[c], problem, -1);
    lengths[c] = num_allocations - before;
    if (usual[c].status != MAGI_OK) {
      std::cerr << kChains[c].name << ": " << magi_last_error_message() << '\n';
      return 1;
    }
  }
  for (std::int64_t index = flags.first; index < flags.first + flags.cases; ++index) {
    RandomStream random = testing::stream_of(flags.seed, index);
    const auto c = static_cast<std::size_t>(random.between(0, std::size(kChains) - 1));
    is_failing_on = random.chance(30);
    const std::int64_t failing = random.between(0, static_cast<std::int32_t>(lengths[c]) - 1);
    const std::int64_t failures_before = num_failures;
    const Trace failed = run_chain(kChains[c], problem, failing);
    const Trace again = run_chain(kChains[c], problem, -1);
    // Some algorithms of the standard library do without memory that they do not get.
    const bool has_coped = failed.status == MAGI_OK && failed.bytes == usual[c].bytes;
    const bool is_said = failed.status == MAGI_OUT_OF_MEMORY || has_coped;
    if (is_said && num_failures > failures_before && again.status == MAGI_OK &&
        again.bytes == usual[c].bytes)
      continue;
    std::cerr << "case " << index << " of seed " << flags.seed << ": chain " << kChains[c].name
              << ", allocation " << failing << (is_failing_on ? " and all after it" : "")
              << ": status " << failed.status << ", then " << again.status << " ("
              << magi_last_error_message() << "), " << num_failures - failures_before
              << " failures, results " << (again.bytes == usual[c].bytes ? "equal" : "differ")
              << '\n';
    return 1;
  }
  std::cout << num_failures << " failed allocations\n";
  return 0;
}

}  // namespace
}  // namespace magi::capi_test

int main(int argc, char** argv) {
  return magi::capi_test::run(magi::testing::read_case_flags(argc, argv, 200));
}
