// SPDX-License-Identifier: Apache-2.0
// Forward and backward of random cases on threads as ranks, each case kRepeats times while other
// threads keep the cores busy: every repeat has the bits of the first run.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "reliability/case_flags.hpp"
#include "verify/checks.hpp"

namespace magi::testing {
namespace {

using cli::CaseResults;

constexpr std::int64_t kRepeats = 10;

/// Threads that calculate, sleep and share the cores with the ranks, twice as many as cores.
class Load {
 public:
  Load() {
    const unsigned count = 2 * std::max(1u, std::thread::hardware_concurrency());
    for (unsigned i = 0; i < count; ++i) {
      workers_.emplace_back([this, i](const std::stop_token& stop) { work(stop, i); });
    }
  }

 private:
  void work(const std::stop_token& stop, unsigned number) {
    std::uint64_t state = number + 1;
    while (!stop.stop_requested()) {
      for (int i = 0; i < 200'000; ++i) state = state * 6364136223846793005u + 1442695040888963407u;
      sink_.store(state, std::memory_order_relaxed);
      if (state % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(state % 1000));
    }
  }

  std::atomic<std::uint64_t> sink_ = 0;
  std::vector<std::jthread> workers_;
};

bool have_equal_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

bool have_equal_bits(const CaseResults& a, const CaseResults& b) {
  for (const auto array :
       {&CaseResults::out, &CaseResults::lse, &CaseResults::max_logits, &CaseResults::dq,
        &CaseResults::dk, &CaseResults::dv, &CaseResults::dsink}) {
    if (!have_equal_bits(a.*array, b.*array)) return false;
  }
  return true;
}

int run(const CaseFlags& flags) {
  const Load load;
  const std::int64_t end = flags.first + flags.cases;
  for (std::int64_t index = flags.first; index < end;) {
    const std::int64_t group = index / kRepeats;
    RandomStream random = stream_of(flags.seed, group);
    const cli::VerifyCase drawn = cli::random_case(random);
    const Plan plan = make_plan(drawn.mask, drawn.config);
    const cli::CaseData data = make_data(drawn);
    const CaseResults first = run_case(drawn, plan, data);
    for (; index < end && index / kRepeats == group; ++index) {
      if (have_equal_bits(run_case(drawn, plan, data), first)) continue;
      std::cerr << "repeat " << index << " of seed " << flags.seed << " has other bits:\n"
                << case_to_json(drawn);
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace magi::testing

int main(int argc, char** argv) {
  return magi::testing::run(magi::testing::read_case_flags(argc, argv, 200));
}
