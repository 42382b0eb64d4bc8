// SPDX-License-Identifier: Apache-2.0
// Changed texts of masks and plans: each is refused in one sentence or gives a mask or plan, which
// is then checked and, where it is small, run against dense attention. To be built with sanitizers
// (preset asan), which end the program at what they find.
#include <algorithm>
#include <array>
#include <exception>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "reliability/case_flags.hpp"
#include "verify/checks.hpp"

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace magi::testing {
namespace {

std::string input_at_hand;
std::int64_t num_accepted = 0;
std::int64_t num_run = 0;

void print_input() { std::cerr << "input: " << input_at_hand << std::endl; }

std::size_t place_in(RandomStream& random, const std::string& text) {
  return static_cast<std::size_t>(random.between(0, static_cast<std::int32_t>(text.size()) - 1));
}

/// Another number in the place of one: a neighbour, or one at an edge of some type.
void change_number(RandomStream& random, std::string& text) {
  const std::size_t begin = text.find_first_of("0123456789", place_in(random, text));
  if (begin == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
  static constexpr std::array kEdges = {"0",          "1",           "-1",
                                        "1073741823", "1073741824",  "-1073741824",
                                        "2147483647", "-2147483648", "9223372036854775807",
                                        "0.5",        "1e9",         "18446744073709551616"};
  std::string number = kEdges[static_cast<std::size_t>(random.between(0, 11))];
  if (random.chance(70) && end - begin < 9) {
    number = std::to_string(std::stol(text.substr(begin, end - begin)) + random.between(-2, 2));
  }
  text.replace(begin, end - begin, number);
}

void change_text(RandomStream& random, std::string& text) {
  static constexpr std::array kTokens = {
      "null",  "true",       "{",       "}",        "[",      "]", ",", ":",
      "\"q\"", "\"slices\"", "\\u0000", "\xc3\x28", "[[[[[[", " ", "-", "\"rows_q\": 3,"};
  const std::size_t at = place_in(random, text);
  switch (random.between(0, 4)) {
    case 0:
      text[at] = static_cast<char>(random.between(0, 255));
      break;
    case 1:
      text.erase(at, static_cast<std::size_t>(random.between(1, 12)));
      break;
    case 2:
      text.insert(
          at, text.substr(place_in(random, text), static_cast<std::size_t>(random.between(1, 40))));
      break;
    case 3:
      text.resize(at);
      break;
    default:
      text.insert(at, kTokens[static_cast<std::size_t>(random.between(0, 15))]);
  }
}

/// Half of the inputs get other numbers alone, so that many are accepted.
std::string changed(RandomStream& random, std::string text) {
  const bool has_numbers_alone = random.chance(50);
  for (int edits = random.between(0, 3); edits >= 0 && !text.empty(); --edits) {
    if (has_numbers_alone || random.chance(30)) {
      change_number(random, text);
    } else {
      change_text(random, text);
    }
  }
  return text;
}

bool is_small(const Mask& mask) {
  return mask.rows_q <= 64 && mask.rows_k <= 64 && mask.slices.size() <= 64;
}

/// Findings about a mask that was accepted.
cli::Findings run_mask(RandomStream& random, const Mask& mask) {
  ++num_accepted;
  validate(mask);
  if (mask_from_json(mask_to_json(mask)) != mask) return {"another mask comes back"};
  if (!is_small(mask) || mask.rows_q == 0 || mask.rows_k == 0) return {};
  ++num_run;
  const cli::VerifyCase small{.mask = mask,
                              .config = {.num_ranks = random.between(1, std::min(mask.rows_q, 2)),
                                         .num_heads_q = 2,
                                         .head_dim_qk = 4,
                                         .head_dim_v = 4,
                                         .element_bytes = 4,
                                         .overlap_degree = random.between(0, 2)},
                              .dtype = DType::Float32,
                              .data_seed = 7};
  return verify(small);
}

/// Findings about a plan that was accepted. An unsound one is not run: that is what check_plan is
/// for.
cli::Findings run_plan(const Plan& plan) {
  ++num_accepted;
  if (plan_from_json(plan_to_json(plan)) != plan) return {"another plan comes back"};
  if (describe(plan).empty()) return {"a plan without description"};
  for (std::int32_t rank = 0; rank < plan.config.num_ranks; ++rank) {
    row_exchanges(plan, rank, Space::Keys);
    row_exchanges(plan, rank, Space::Queries);
  }
  const PlanConfig& config = plan.config;
  const bool is_runnable = is_small(plan.mask) && config.num_ranks <= 4 &&
                           config.num_heads_q <= 8 && config.head_dim_qk <= 16 &&
                           config.head_dim_v <= 16 && config.element_bytes == 4;
  if (!is_runnable || !check_plan(plan).empty()) return {};
  ++num_run;
  const cli::VerifyCase sound{
      .mask = plan.mask, .config = config, .dtype = DType::Float32, .data_seed = 7};
  const cli::CaseData data = make_data(sound);
  const cli::CaseResults results = run_case(sound, plan, data);
  return check_results(sound, data, results, reference_results(sound, data));
}

Mask draw_mask(RandomStream& random) {
  return random_mask(random, {.max_rows_q = 40, .max_rows_k = 40, .max_slices = 6});
}

Plan draw_plan(RandomStream& random) {
  const Mask mask =
      random_mask(random, {.min_rows = 8, .max_rows_q = 24, .max_slices = 5, .is_square = true});
  return make_plan(mask, {.num_ranks = random.between(1, 3),
                          .num_heads_q = 2,
                          .num_heads_kv = random.between(1, 2),
                          .head_dim_qk = 4,
                          .head_dim_v = 4,
                          .element_bytes = 4,
                          .overlap_degree = random.between(0, 2)});
}

template <typename Record>
std::int32_t* integer_in(RandomStream& random, std::vector<Record>& records) {
  if (records.empty()) return nullptr;
  constexpr auto kCount = static_cast<std::int32_t>(sizeof(Record) / sizeof(std::int32_t));
  auto& record = records[static_cast<std::size_t>(
      random.between(0, static_cast<std::int32_t>(records.size()) - 1))];
  return reinterpret_cast<std::int32_t*>(&record) + random.between(0, kCount - 1);
}

/// A plan with another integer in one of its tables, and the digest of that: what a writer of plans
/// with a defect would hand in.
std::string plan_with_other_tables(RandomStream& random) {
  Plan plan = draw_plan(random);
  RankPlan& rank =
      plan.ranks[static_cast<std::size_t>(random.between(0, plan.config.num_ranks - 1))];
  std::int32_t* target = nullptr;
  switch (random.between(0, 4)) {
    case 0:
      target = integer_in(random, rank.slices);
      break;
    case 1:
      target = integer_in(random, plan.transfers);
      break;
    case 2:
      target = integer_in(random, rank.k.segments);
      break;
    case 3:
      target = integer_in(random, plan.placement_q.chunk_rank);
      break;
    default:
      target = integer_in(random, plan.mask.slices);
  }
  if (target != nullptr) {
    *target = random.chance(70) ? *target + random.between(-2, 2) : random.between(-4, 64);
  }
  plan.digest = plan_digest(plan);
  return plan_to_json(plan);
}

/// Findings about input `index`.
cli::Findings run_input(std::uint64_t seed, std::int64_t index) {
  RandomStream random = stream_of(seed, index);
  const bool is_mask = index % 10 < 6;
  if (is_mask) {
    input_at_hand = changed(random, mask_to_json(draw_mask(random)));
  } else if (index % 10 < 9) {
    input_at_hand = changed(random, plan_to_json(draw_plan(random)));
  } else {
    input_at_hand = plan_with_other_tables(random);
  }
  try {
    if (is_mask) return run_mask(random, mask_from_json(input_at_hand));
    return run_plan(plan_from_json(input_at_hand));
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    const bool is_sentence = message.find("; allowed: ") != std::string::npos;
    const bool is_line = std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; });
    if (is_sentence && is_line && message.size() < 600) return {};
    return {"a refusal that is no sentence: " + message};
  } catch (const std::exception& error) {
    return {std::string("exception: ") + error.what()};
  }
}

int run(const CaseFlags& flags) {
  for (std::int64_t index = flags.first; index < flags.first + flags.cases; ++index) {
    const cli::Findings findings = run_input(flags.seed, index);
    if (findings.empty()) continue;
    std::cerr << "input " << index << " of seed " << flags.seed << ": " << findings[0] << '\n';
    print_input();
    return 1;
  }
  std::cout << flags.cases << " inputs, " << num_accepted << " accepted, " << num_run << " run\n";
  return 0;
}

}  // namespace
}  // namespace magi::testing

int main(int argc, char** argv) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(magi::testing::print_input);
#endif
  return magi::testing::run(magi::testing::read_case_flags(argc, argv, 8000));
}
