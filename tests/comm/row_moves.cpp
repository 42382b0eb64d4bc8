// SPDX-License-Identifier: Apache-2.0
#include "comm/row_moves.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/half.hpp"

namespace magi::testing {
namespace {

using Indices = std::vector<std::int64_t>;

const DeviceAllocator kPool;
constexpr std::int64_t kHeads = 3;
constexpr std::int64_t kDim = 8;
constexpr double kNone = -std::numeric_limits<double>::infinity();

const RowExchange& rows_of(const ExchangeCase& test, std::int32_t rank) {
  return test.ranks[static_cast<std::size_t>(rank)];
}
std::int64_t needed_rows(const ExchangeCase& test, std::int32_t rank) {
  return test.needed_rows[static_cast<std::size_t>(rank)];
}
const ExchangeCase::Origin& origin_of(const ExchangeCase& test, std::int32_t rank,
                                      std::int64_t row) {
  return test.origin[static_cast<std::size_t>(rank)][static_cast<std::size_t>(row)];
}

std::int64_t place_in_row(const Indices& at) {
  std::int64_t place = 0;
  for (std::size_t axis = 1; axis < at.size(); ++axis) place = place * 10 + at[axis];
  return place;
}

HostTensor filled(HostTensor tensor, const std::function<double(const Indices&)>& value) {
  fill(tensor.view, value);
  return tensor;
}

void expect_all(const TensorView& seen, const std::function<double(const Indices&)>& expected,
                double tolerance, const char* what) {
  std::int64_t num_wrong = 0;
  for_each_element(seen, [&](const Indices& at) {
    const double value = read_element(seen, at);
    const double wanted = expected(at);
    num_wrong += !(value == wanted || std::abs(value - wanted) <= tolerance);
  });
  EXPECT_EQ(num_wrong, 0) << what;
}

double rounded(double value, DType dtype) {
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::BFloat16) return bfloat16_to_float(float_to_bfloat16(narrow));
  if (dtype == DType::Float16) return float16_to_float(float_to_float16(narrow));
  return dtype == DType::Float64 ? value : narrow;
}

/// Values of many sizes, so that the order of additions shows.
double uneven(std::int32_t rank, const Indices& at, DType dtype) {
  const auto i = static_cast<double>(at[0] * 31 + place_in_row(at));
  return rounded(std::sin(i * 0.37 + rank) * std::exp2((at[0] * 7 + rank * 5) % 11), dtype);
}

/// The owner's value, then every rank's partial in rank order: visit(rank, needed row).
template <typename Visit>
void for_each_partial(const ExchangeCase& test, std::int32_t owner, std::int64_t row,
                      const Visit& visit) {
  for (std::int32_t rank = 0; rank < test.num_ranks; ++rank) {
    for (std::int64_t i = 0; i < needed_rows(test, rank); ++i) {
      const auto& origin = origin_of(test, rank, i);
      if (origin.owner == owner && origin.row == row) visit(rank, i);
    }
  }
}

double expected_sum(const ExchangeCase& test, std::int32_t owner, Indices at, DType wire,
                    DType sum) {
  double total = 0.125;
  const std::int64_t row = at[0];
  for_each_partial(test, owner, row, [&](std::int32_t rank, std::int64_t needed) {
    at[0] = needed;
    const double added = total + uneven(rank, at, wire);
    total = sum == DType::Float64 ? added : static_cast<float>(added);
  });
  return rounded(total, sum);
}

struct LseRow {
  double out = 0;
  double lse = kNone;
};

LseRow merged(LseRow a, LseRow b) {
  if (b.lse == kNone || a.lse == -kNone) return a.lse == kNone ? LseRow{} : a;
  if (a.lse == kNone || b.lse == -kNone) return b;
  const double lse = std::log(std::exp(a.lse) + std::exp(b.lse));
  return {.out = a.out * std::exp(a.lse - lse) + b.out * std::exp(b.lse - lse), .lse = lse};
}

/// Rows without keys are frequent, and their values are garbage that must not leak. An lse of +inf
/// is that of a row whose sink takes all weight.
LseRow lse_partial(std::int32_t rank, std::int64_t row, std::int64_t head) {
  const std::int64_t draw = (rank * 17 + row * 5 + head * 3) % 7;
  if (draw < 3) return {.out = std::numeric_limits<double>::quiet_NaN(), .lse = kNone};
  return {.out = static_cast<double>(draw) - 4.5,
          .lse = draw == 6 ? -kNone : static_cast<double>(draw * draw) - 20};
}
LseRow lse_own(std::int64_t row, std::int64_t head) {
  return (row + head) % 4 == 0 ? LseRow{} : LseRow{.out = 1, .lse = -5};
}

LseRow expected_merge(const ExchangeCase& test, std::int32_t owner, const Indices& at) {
  LseRow row = lse_own(at[0], at[1]);
  for_each_partial(test, owner, at[0], [&](std::int32_t rank, std::int64_t needed) {
    row = merged(row, lse_partial(rank, needed, at[1]));
  });
  return row;
}

std::unique_ptr<comm::RowExchanger> exchanger_of(Communicator& group, const TestMemory& memory) {
  return comm::make_row_exchanger(group, memory.device, kPool, {.has_passes = true});
}

ExchangeCase case_of(const Communicator& group, std::uint64_t seed) {
  return random_case({.num_ranks = group.num_ranks(), .with_own_rows = true}, seed);
}

comm::RowTable table_of(const Communicator& group, const ExchangeCase& test) {
  return comm::RowTable(rows_of(test, group.rank()), group.rank(), group.num_ranks());
}

/// One move, from its start to its end.
void move_sync(Communicator& group, const ExchangeCase& test, const TestMemory& memory,
               const comm::RowMove& move) {
  const comm::RowTable table = table_of(group, test);
  exchanger_of(group, memory)->start(table, move, memory.stream)->await(memory.stream);
}

}  // namespace

void check_cast(Communicator& group, const TestMemory& memory) {
  const ExchangeCase test = case_of(group, 3);
  const std::int32_t rank = group.rank();
  const std::int64_t rows = needed_rows(test, rank);
  const auto marks = [rank](const Indices& at) { return mark(rank, at[0], place_in_row(at)); };
  Twin k(memory, filled(make_head_slice(DType::BFloat16, test.owned_rows, kHeads, kDim), marks));
  Twin v(memory, filled(make_tensor(DType::Float32, {test.owned_rows, 2, 5}), marks));
  Twin id(memory, filled(make_tensor(DType::Int64, {test.owned_rows}), marks));
  const auto exchanger = exchanger_of(group, memory);
  const comm::RowTable table = table_of(group, test);
  for (std::int32_t stage = 0; stage < 2; ++stage) {  // the table serves more than once
    Twin k_in(memory, make_tensor(DType::BFloat16, {rows, kHeads, kDim}));
    Twin v_in(memory, make_head_slice(DType::Float32, rows, 2, 5));
    Twin id_in(memory, make_tensor(DType::Int64, {rows}));
    const std::array from{k.view(), v.view(), id.view()};
    const std::array to{k_in.view(), v_in.view(), id_in.view()};
    exchanger
        ->start(table, {.from = from, .to = to, .tag = {.plan_digest = 5, .stage = stage}},
                memory.stream)
        ->await(memory.stream);
    for (Twin* received : {&k_in, &v_in, &id_in}) {
      expect_all(
          received->fetched(),
          [&](const Indices& at) {
            const auto& origin = origin_of(test, rank, at[0]);
            return mark(origin.owner, origin.row, place_in_row(at));
          },
          0, "cast");
    }
  }
}

namespace {

/// The types of partials and of what they are combined with.
struct Types {
  DType wire, sum;
};

/// The second tensor has rows of 2 x `dim` elements.
void check_sum_of(std::int64_t dim, Communicator& group, const TestMemory& memory, Types types) {
  const auto [wire, sum] = types;
  const ExchangeCase test = case_of(group, 4);
  const std::int32_t rank = group.rank();
  const std::int64_t rows = needed_rows(test, rank);
  const auto partial = [&](const Indices& at) { return uneven(rank, at, wire); };
  const auto start = [](const Indices&) { return 0.125; };
  Twin dk(memory, filled(make_tensor(wire, {rows, kHeads, kDim}), partial));
  Twin dv(memory, filled(make_tensor(wire, {rows, 2, dim}), partial));
  Twin dk_sum(memory, filled(make_head_slice(sum, test.owned_rows, kHeads, kDim), start));
  Twin dv_sum(memory, filled(make_tensor(sum, {test.owned_rows, 2, dim}), start));
  const std::array from{dk.view(), dv.view()};
  const std::array to{dk_sum.view(), dv_sum.view()};
  move_sync(group, test, memory, {.kind = ExchangeKind::Sum, .from = from, .to = to});
  for (Twin* total : {&dk_sum, &dv_sum}) {
    expect_all(
        total->fetched(),
        [&, w = wire, s = sum](const Indices& at) { return expected_sum(test, rank, at, w, s); }, 0,
        "sum");
  }
}

/// Partials are added bit for bit in rank order.
void check_sums(Communicator& group, const TestMemory& memory) {
  for (const Types types : {Types{DType::Float32, DType::Float32},
                            {DType::BFloat16, DType::Float32},
                            {DType::Float16, DType::Float32},
                            {DType::BFloat16, DType::BFloat16},
                            {DType::Float16, DType::Float16},
                            {DType::Float64, DType::Float64},
                            {DType::Float32, DType::Float64}}) {
    // Rows of some elements alone, and rows of whole units that a block does not hold at a time.
    for (const std::int64_t dim : {5, 300}) check_sum_of(dim, group, memory, types);
  }
}

/// The own rows that a last sum is given: all, or those that something is added to.
enum class OwnRows : std::uint8_t { All, Summed };

void check_rounded_sum(Communicator& group, const TestMemory& memory, DType rounded_type,
                       OwnRows own_rows) {
  const ExchangeCase test = case_of(group, 19);
  const std::int32_t rank = group.rank();
  const comm::RowTable table = table_of(group, test);
  const auto partial = [&](const Indices& at) { return uneven(rank, at, DType::Float32); };
  const auto start = [](const Indices&) { return 0.125; };
  const auto before = [](const Indices&) { return 7.0; };
  const std::int64_t rows = needed_rows(test, rank);
  Twin dk(memory, filled(make_tensor(DType::Float32, {rows, kHeads, kDim}), partial));
  Twin dv(memory, filled(make_tensor(DType::Float32, {rows, kHeads, 2 * kDim}), partial));
  // More rows than others need, so that some have no partial.
  const std::int64_t owned = test.owned_rows + 11;
  const std::int64_t kept = own_rows == OwnRows::All ? owned : table.sums().num_rows();
  Twin dk_own(memory, filled(make_tensor(DType::Float32, {kept, kHeads, kDim}), start));
  Twin dv_own(memory, filled(make_head_slice(DType::Float32, kept, kHeads, 2 * kDim), start));
  Twin dk_sum(memory, filled(make_head_slice(rounded_type, owned, kHeads, kDim), before));
  Twin dv_sum(memory, filled(make_tensor(rounded_type, {owned, kHeads, 2 * kDim}), before));
  const std::array from{dk.view(), dv.view()};
  const std::array to{dk_own.view(), dv_own.view()};
  const std::array rounded_to{dk_sum.view(), dv_sum.view()};
  const auto exchanger = exchanger_of(group, memory);
  const auto pending =
      exchanger->start(table, {.kind = ExchangeKind::Sum, .from = from, .to = to}, memory.stream);
  EXPECT_FALSE(pending->round_into(to)) << "they are not narrower";
  ASSERT_TRUE(pending->round_into(rounded_to));
  pending->await(memory.stream);
  const auto is_summed = [&](std::int64_t row) {
    return std::ranges::any_of(table.sums().tasks, [row](const comm::SumTask& task) {
      return task.row <= row && row < task.row + task.num_rows;
    });
  };
  const auto expected = [&](const Indices& at) {
    if (own_rows == OwnRows::Summed && !is_summed(at[0])) return before(at);
    return rounded(expected_sum(test, rank, at, DType::Float32, DType::Float32), rounded_type);
  };
  for (Twin* total : {&dk_sum, &dv_sum}) expect_all(total->fetched(), expected, 0, "rounded sum");
  for (Twin* own : {&dk_own, &dv_own}) expect_all(own->fetched(), start, 0, "own part");
}

/// Sums whose last exchange rounds them into other tensors, as it does on GPUs alone.
void check_rounded_sums(Communicator& group, const TestMemory& memory) {
  if (memory.device == kCpuDevice) return;
  for (const DType type : {DType::BFloat16, DType::Float16}) {
    for (const OwnRows rows : {OwnRows::All, OwnRows::Summed}) {
      check_rounded_sum(group, memory, type, rows);
    }
  }
}

void check_merge_of(std::int64_t heads, Communicator& group, const TestMemory& memory,
                    Types types) {
  const auto [wire, out] = types;
  const ExchangeCase test = case_of(group, 11);
  const std::int32_t rank = group.rank();
  const std::int64_t rows = needed_rows(test, rank);
  const DType lse_type = out == DType::Float64 ? DType::Float64 : DType::Float32;
  const auto part = [&](const Indices& at) { return lse_partial(rank, at[0], at[1]); };
  const auto own = [&](const Indices& at) { return lse_own(at[0], at[1]); };
  const auto out_of = [](const auto& row) {
    return [row](const Indices& at) { return row(at).out; };
  };
  const auto lse_of = [](const auto& row) {
    return [row](const Indices& at) { return row(at).lse; };
  };
  constexpr std::int64_t kLongDim = 200;  // more than a warp holds at a time
  Twin part_out(memory, filled(make_tensor(wire, {rows, heads, kLongDim}), out_of(part)));
  Twin part_lse(memory, filled(make_tensor(lse_type, {rows, heads}), lse_of(part)));
  Twin sum_out(memory, filled(make_head_slice(out, test.owned_rows, heads, kLongDim), out_of(own)));
  Twin sum_lse(memory, filled(make_tensor(lse_type, {test.owned_rows, heads}), lse_of(own)));
  const std::array from{part_out.view(), part_lse.view()};
  const std::array to{sum_out.view(), sum_lse.view()};
  move_sync(group, test, memory, {.kind = ExchangeKind::LseMerge, .from = from, .to = to});
  const double tolerance = out == DType::Float64 ? 1e-12 : out == DType::Float32 ? 1e-5 : 0.03;
  const auto merge = [&](const Indices& at) { return expected_merge(test, rank, at); };
  expect_all(sum_out.fetched(), out_of(merge), tolerance, "merged out");
  expect_all(sum_lse.fetched(), lse_of(merge), out == DType::Float64 ? 1e-12 : 1e-5, "merged lse");
}

/// (out, lse) partials are merged as float64 does it, rows without keys among them.
void check_merges(Communicator& group, const TestMemory& memory) {
  for (const Types types : {Types{DType::Float32, DType::Float32},
                            {DType::BFloat16, DType::Float32},
                            {DType::BFloat16, DType::BFloat16},
                            {DType::Float16, DType::Float16},
                            {DType::Float64, DType::Float64}}) {
    // lse of four heads leave rows of float32 aligned to whole units, those of three do not.
    for (const std::int64_t heads : {3, 4}) check_merge_of(heads, group, memory, types);
  }
}

}  // namespace

void check_order(Communicator& group, const TestMemory& memory) {
  const ExchangeCase test = all_to_all_case(group.num_ranks(), 20);
  const std::int32_t rank = group.rank();
  const std::int64_t rows = needed_rows(test, rank);
  const auto constant = [](double value) { return [value](const Indices&) { return value; }; };
  const auto row_mark = [rank](const Indices& at) { return mark(rank, at[0], 0); };
  Twin source(memory, filled(make_tensor(DType::Float32, {20, 1}), row_mark));
  Twin received(memory, make_tensor(DType::Float32, {rows, 1}));
  Twin small(memory, filled(make_tensor(DType::Float32, {rows, 1}), constant(1)));
  Twin big(memory, filled(make_tensor(DType::Float32, {rows, 1}), constant(0x1p23)));
  Twin total(memory, make_tensor(DType::Float32, {20, 1}));
  const auto exchanger = exchanger_of(group, memory);
  const comm::RowTable table = table_of(group, test);
  const auto start = [&](ExchangeKind kind, const Twin& from, const Twin& to) {
    return exchanger->start(table, {.kind = kind, .from = {&from.view(), 1}, .to = {&to.view(), 1}},
                            memory.stream);
  };
  const auto cast = start(ExchangeKind::Cast, source, received);
  auto first = start(ExchangeKind::Sum, small, total);
  auto second = start(ExchangeKind::Sum, big, total);
  second->await(memory.stream);
  cast->await(memory.stream);
  first->await(memory.stream);
  first->await(memory.stream);
  // 1s before the large terms survive; after them they would be rounded away.
  const double others = group.num_ranks() - 1;
  expect_all(total.fetched(), constant(others * 0x1p23 + (others >= 2 ? 2 : others)), 0, "order");
  expect_all(
      received.fetched(),
      [&](const Indices& at) {
        const auto& origin = origin_of(test, rank, at[0]);
        return mark(origin.owner, origin.row, 0);
      },
      0, "cast");
  EXPECT_TRUE(exchanger->largest_bytes() > 0 || group.num_ranks() == 1);
}

void check_shared_rows(Communicator& group, const TestMemory& memory) {
  // Every rank's rows 2 to 5 go to the next; they arrive as rows 1 to 4 of tensors that share rows.
  const std::int32_t rank = group.rank();
  const std::int32_t next = (rank + 1) % group.num_ranks();
  const std::int32_t before = (rank + group.num_ranks() - 1) % group.num_ranks();
  const RowExchange rows{.owned = {{next, 2, 3}}, .needed = {{before, 1, 3}}};
  const auto marks = [rank](const Indices& at) { return mark(rank, at[0], at[1]); };
  Twin source(memory, filled(make_tensor(DType::Float32, {6, 12}), marks));
  Twin target(memory, make_tensor(DType::Float32, {5, 12}));
  const auto halves = [](TensorView whole) {
    std::array<TensorView, 2> parts{whole, whole};
    parts[0].shape[1] = 8;
    parts[1].shape[1] = 4;
    parts[1].data = static_cast<std::byte*>(whole.data) + 8 * sizeof(float);
    return parts;
  };
  const auto from = halves(source.view());
  const auto to = halves(target.view());
  const comm::RowTable table(rows, rank, group.num_ranks());
  const auto exchanger = exchanger_of(group, memory);
  exchanger->start(table, {.from = from, .to = to}, memory.stream)->await(memory.stream);
  EXPECT_EQ(exchanger->largest_bytes(), 0) << "nothing is staged";
  const auto is_received = [](const Indices& at) { return at[0] >= 1 && at[0] < 4; };
  expect_all(
      target.fetched(),
      [&](const Indices& at) { return is_received(at) ? mark(before, at[0] + 1, at[1]) : 0.0; }, 0,
      "cast in place");
  // Back again: partials are sent where they lie and added to the owners' rows.
  exchanger->start(table, {.kind = ExchangeKind::Sum, .from = to, .to = from}, memory.stream)
      ->await(memory.stream);
  expect_all(
      source.fetched(),
      [&](const Indices& at) { return marks(at) * (at[0] >= 2 && at[0] < 5 ? 2 : 1); }, 0,
      "sum from its place");
}

namespace {

void check_maximum_of(Communicator& group, const TestMemory& memory, DType dtype) {
  const std::int32_t rank = group.rank();
  Twin values(memory, filled(make_tensor(dtype, {5}), [&](const Indices& at) {
                return at[0] == rank ? 100.0 + rank : -static_cast<double>(at[0] + rank);
              }));
  Twin gathered(memory, make_tensor(dtype, {group.num_ranks(), 5}));
  const comm::RankMaximum maximum(rank, group.num_ranks());
  const std::int64_t casts_before = group.counters().casts;
  const auto exchanger = exchanger_of(group, memory);
  maximum.apply(*exchanger, values.view(), gathered.view(), {}, memory.stream);
  expect_all(
      values.fetched(),
      [&](const Indices& at) {
        const auto i = static_cast<double>(at[0]);
        return at[0] < group.num_ranks() ? 100.0 + i : -i;
      },
      0, "maximum");
  EXPECT_EQ(group.counters().casts, casts_before);
}

void check_maxima(Communicator& group, const TestMemory& memory) {
  check_maximum_of(group, memory, DType::Float32);
  check_maximum_of(group, memory, DType::Float64);
}

}  // namespace

Twin::Twin(const TestMemory& memory, HostTensor given)
    : memory_(memory), host_(std::move(given)), view_(host_.view) {
  if (!memory.place) return;
  placed_ = memory.place(host_.storage);
  const auto offset = static_cast<std::byte*>(host_.view.data) - host_.storage.data();
  view_.data = static_cast<std::byte*>(placed_.get()) + offset;
  view_.device = memory.device;
}

const TensorView& Twin::fetched() {
  if (memory_.fetch_sync) memory_.fetch_sync(placed_.get(), host_.storage);
  return host_.view;
}

std::vector<RowCheck> row_checks() {
  return {{"casts", check_cast, {1, 2, 4}},     {"sums", check_sums},
          {"rounded_sums", check_rounded_sums}, {"merges", check_merges},
          {"order", check_order, {3}},          {"shared_rows", check_shared_rows, {3}},
          {"maxima", check_maxima, {3}}};
}

}  // namespace magi::testing
