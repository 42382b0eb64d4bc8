// SPDX-License-Identifier: Apache-2.0
#include "kernels/worklist/backward_order.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <numeric>

#include "base/check.hpp"
#include "kernels/worklist/forward_list.hpp"

namespace magi {
namespace {

/// Whose Q, dO and dQ fill the cache.
std::int64_t cached_steps(const BackwardList& list) {
  const BackwardProblem& problem = list.problem;
  const std::int64_t row_bytes = 2 * (problem.dim_qk + problem.dim_v) + 4 * problem.dim_qk;
  return std::max<std::int64_t>(problem.cache_bytes / (list.shape.rows * row_bytes), 1);
}

/// Numbers of items that may share a k tile of a kv head, each a multiple of the one before.
std::vector<std::int32_t> piece_counts(std::int32_t groups) {
  std::vector<std::int32_t> counts = {1};
  // Each before and in the tail; tiles without records make two spans more.
  while (counts.back() < groups && counts.size() + 1 < kMaxSpans / 2) {
    const std::int32_t rest = groups / counts.back();
    std::int32_t factor = 2;
    while (rest % factor != 0) ++factor;
    counts.push_back(counts.back() * factor);
  }
  return counts;
}

/// Of Arrangement::tail_share.
constexpr std::int32_t kWholeTail = 16;

/// What an order is made from.
struct Arrangement {
  std::int64_t item_steps = 1;  ///< items are at least as long, where tiles are dear enough,
  std::int64_t tail_steps = 1;  ///< and those of the tail
  std::int32_t tail_share = kWholeTail;
  std::int32_t section_factor = 1;  ///< more kv heads side by side than the fewest
  bool is_tail_cut_alike = false;   ///< all its tiles in as many pieces as the dearest of the list
};

/// How many CTAs are free at each time.
class FreeTimes {
 public:
  explicit FreeTimes(std::int32_t num_ctas) : counts_{num_ctas} {}

  /// The earliest.
  std::int64_t take() {
    while (counts_[now_] == 0) ++now_;
    --counts_[now_];
    return static_cast<std::int64_t>(now_);
  }
  /// No earlier than the last one taken.
  void give(std::int64_t time) {
    const auto index = static_cast<std::size_t>(time);
    if (index >= counts_.size()) counts_.resize(index + 1);
    ++counts_[index];
  }

 private:
  std::vector<std::int32_t> counts_;
  std::size_t now_ = 0;
};

/// Tries orders of one list.
class TileOrder {
 public:
  TileOrder(BackwardList& list, const BackwardTileCosts& costs,
            std::span<const std::int32_t> islands, const BackwardChoice& choice)
      : list_(list),
        costs_(costs),
        choice_(choice),
        groups_(list.problem.heads_q / list.problem.heads_kv / list.packed_heads),
        cached_steps_(cached_steps(list)),
        by_cost_(costs.size()),
        dearest_of_(costs.size()),
        island_of_(costs.size(), -1) {
    allowed_ = choice.heads_per_item == 0
                   ? piece_counts(groups_)
                   : std::vector{groups_ * list.packed_heads / choice.heads_per_item};
    std::iota(by_cost_.begin(), by_cost_.end(), std::size_t{0});
    std::stable_sort(by_cost_.begin(), by_cost_.end(),
                     [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
    find_dearest(islands);
    is_uneven_ = compare_tiles();
  }

  /// How long items are where their number does not matter. Where tiles are uneven the CTAs are
  /// all over the rows, and only what an item walks little of is still in the cache for the next
  /// one: then they are short, and elsewhere as long as can be.
  std::int64_t item_steps() const {
    if (is_uneven_) return std::max<std::int64_t>(3 * cached_steps_ / 8, 1);
    return by_cost_.empty() ? 1 : std::max<std::int64_t>(costs_[by_cost_.front()] * groups_, 1);
  }
  std::int64_t tail_steps(std::int64_t item_steps) const {
    constexpr std::int64_t kTailSteps = 24;
    return is_uneven_ ? std::min(item_steps, kTailSteps) : item_steps;
  }

  void arrange(const Arrangement& by) {
    // One head alone gains nothing over two, as measured.
    min_heads_ = by.item_steps < item_steps() ? 1 : 2;
    section_factor_ = by.section_factor;
    list_.spans.clear();
    places_ = by_cost_;
    num_before_ = count_before_tail(by);
    pieces_.assign(places_.size(), 1);
    for (std::ptrdiff_t i = 0; i < std::ssize(places_); ++i) {
      const std::size_t tile = places_[static_cast<std::size_t>(i)];
      if (costs_[tile] == 0) continue;
      pieces_[tile] = i < num_before_ ? pieces_of(head_cost(tile), by.item_steps)
                                      : tail_pieces(costs_[tile], by);
    }
    std::stable_sort(places_.begin(), places_.begin() + num_before_,
                     [&](std::size_t a, std::size_t b) { return comes_before(a, b); });
    add_spans(0, num_before_, false);
    add_spans(num_before_, std::ssize(places_), true);
  }

  /// When the last CTA is done, items being handed out in order.
  std::int64_t finish_time() const {
    // Of very long lists in coarser steps: one counter for each would fill the memory.
    const std::int64_t unit = mean_time() / (std::int64_t{1} << 18) + 1;
    FreeTimes ctas(list_.problem.num_ctas);
    const auto heads_kv = static_cast<std::size_t>(list_.problem.heads_kv);
    std::vector<std::int64_t> done_of(places_.size() * heads_kv);
    std::int64_t last = 0;
    BackwardItem item;
    for (std::int64_t index = 0; index < list_.num_items(); index += item.num_beside) {
      item = backward_item(list_.spans.data(), list_.problem.heads_kv,
                           static_cast<std::uint32_t>(index), item.span);
      const std::int32_t pieces = pieces_at(item.tile);
      const std::int64_t cost = place_cost(item.tile, pieces);
      std::int64_t* before = &done_of[static_cast<std::size_t>(item.tile) * heads_kv +
                                      static_cast<std::size_t>(item.kv_head)];
      for (std::int32_t i = 0; i < item.num_beside; ++i) {
        std::int64_t done = ctas.take() * unit + cost;
        if (pieces > 1) before[i] = done = std::max(done, before[i] + list_.shape.split_cost);
        ctas.give((done + unit - 1) / unit);
        last = std::max(last, done);
      }
    }
    return last;
  }

  /// The same without what the last items leave idle.
  std::int64_t mean_time() const {
    std::int64_t sum = 0;
    for (std::ptrdiff_t i = 0; i < std::ssize(places_); ++i) {
      const std::int32_t pieces = pieces_at(i);
      sum += place_cost(i, pieces) * pieces;
    }
    return sum * list_.problem.heads_kv / list_.problem.num_ctas;
  }

  /// Whether even items of all heads are so few that they do not balance by themselves.
  bool is_short() const { return whole_items() < 8 * std::int64_t{list_.problem.num_ctas}; }
  /// Whether a round of all CTAs less or more is nothing.
  bool is_long() const { return whole_items() >= 100 * std::int64_t{list_.problem.num_ctas}; }

  bool has_choice() const { return allowed_.size() > 1; }
  bool is_uneven() const { return is_uneven_; }

  void put_tiles() const {
    std::vector<KeyTileWork> tiles;
    tiles.reserve(places_.size());
    for (const std::size_t index : places_) tiles.push_back(list_.tiles[index]);
    list_.tiles = std::move(tiles);
  }

 private:
  std::int64_t whole_items() const { return std::ssize(costs_) * list_.problem.heads_kv; }

  /// Of a tile, that of its first record.
  void find_dearest(std::span<const std::int32_t> islands) {
    std::map<std::int32_t, std::int64_t> dearest;
    for (std::size_t tile = 0; tile < costs_.size(); ++tile) {
      const KeyTileWork& work = list_.tiles[tile];
      if (work.record_begin == work.record_end) continue;
      island_of_[tile] = islands[static_cast<std::size_t>(work.record_begin)];
      std::int64_t& cost = dearest[island_of_[tile]];
      cost = std::max(cost, costs_[tile]);
    }
    for (std::size_t tile = 0; tile < costs_.size(); ++tile) {
      dearest_of_[tile] = island_of_[tile] < 0 ? 0 : dearest[island_of_[tile]];
    }
    num_islands_ = dearest.size();
  }

  /// Whether tiles of an island differ, as those of a causal mask do, and their steps are long
  /// beside an item's own costs.
  bool compare_tiles() const {
    if (list_.problem.dim_qk + list_.problem.dim_v <= 128) return false;
    const std::int64_t if_even =
        std::accumulate(dearest_of_.begin(), dearest_of_.end(), std::int64_t{0});
    const std::int64_t sum = std::accumulate(costs_.begin(), costs_.end(), std::int64_t{0});
    return 2 * if_even > 3 * sum;
  }

  /// By which a tile before the tail is cut: those of a single island alike, so that its rows are
  /// walked once for each head.
  std::int64_t head_cost(std::size_t tile) const {
    return num_islands_ == 1 ? dearest_of_[tile] : costs_[tile];
  }

  /// Islands together, of tiles as dear as each other.
  bool comes_before(std::size_t a, std::size_t b) const {
    if (pieces_[a] != pieces_[b]) return pieces_[a] > pieces_[b];
    if ((costs_[a] == 0) != (costs_[b] == 0)) return costs_[b] == 0;
    if (!is_uneven_) return false;
    if (dearest_of_[a] != dearest_of_[b]) return dearest_of_[a] > dearest_of_[b];
    return island_of_[a] < island_of_[b];
  }

  /// As many pieces as leave `steps` to each, but at least the fewest.
  std::int32_t pieces_of(std::int64_t cost, std::int64_t steps) const {
    std::int32_t pieces = allowed_.front();
    for (const std::int32_t more : allowed_) {
      const std::int32_t groups = groups_ / more;
      if (cost * groups >= steps && groups * list_.packed_heads >= min_heads_) pieces = more;
    }
    return pieces;
  }

  std::int32_t tail_pieces(std::int64_t cost, const Arrangement& by) const {
    return pieces_of(by.is_tail_cut_alike ? costs_[by_cost_.front()] : cost, by.tail_steps);
  }

  /// Of each of a tile's pieces. The more rows an item of an uneven list walks, the fewer are still
  /// in the cache when the next comes to them: up to an eighth of its time.
  std::int64_t item_cost(std::int64_t tile_cost, std::int32_t pieces) const {
    const std::int64_t steps = tile_cost * (groups_ / pieces);
    const std::int64_t walked = std::min(steps, cached_steps_);
    const std::int64_t missed = steps * walked / cached_steps_ * walked / (8 * cached_steps_);
    return steps + (is_uneven_ ? missed : 0) + list_.shape.overhead +
           (pieces > 1 ? list_.shape.split_cost : 0);
  }

  /// Of an item at a place. Where CTAs are all over the rows of many heads a step costs more: a
  /// quarter in the tail of an uneven list, as measured where the whole list is a tail, and a
  /// sixteenth in wider sections than need be.
  std::int64_t place_cost(std::ptrdiff_t place, std::int32_t pieces) const {
    const std::int64_t cost = item_cost(costs_[places_[static_cast<std::size_t>(place)]], pieces);
    if (!is_uneven_) return cost;
    if (place >= num_before_) return cost + cost / 4;
    return section_factor_ > 1 ? cost + cost / 16 : cost;
  }

  /// All tiles but the cheapest that keep every CTA busy while one still walks the dearest, or a
  /// share of these.
  std::ptrdiff_t count_before_tail(const Arrangement& by) const {
    std::ptrdiff_t count = std::ssize(by_cost_);
    if (count == 0) return 0;
    const std::int64_t dearest = costs_[by_cost_.front()];
    const std::int64_t wanted = list_.problem.num_ctas *
                                item_cost(dearest, pieces_of(dearest, by.item_steps)) *
                                by.tail_share / kWholeTail;
    for (std::int64_t rest = 0; count > 0 && rest < wanted; --count) {
      const std::int64_t cost = costs_[by_cost_[static_cast<std::size_t>(count) - 1]];
      const std::int32_t pieces = tail_pieces(cost, by);
      rest += item_cost(cost, pieces) * pieces * list_.problem.heads_kv;
    }
    return count;
  }

  /// One for each run of tiles with as many pieces, and one of tiles without records.
  void add_spans(std::ptrdiff_t begin, std::ptrdiff_t end, bool is_tail) {
    while (begin < end) {
      std::ptrdiff_t run = begin;
      while (run < end && pieces_at(run) == pieces_at(begin) && is_empty(run) == is_empty(begin)) {
        ++run;
      }
      add_span(begin, run, is_tail);
      begin = run;
    }
  }

  std::int32_t pieces_at(std::ptrdiff_t place) const {
    return pieces_[places_[static_cast<std::size_t>(place)]];
  }

  bool is_empty(std::ptrdiff_t place) const {
    return costs_[places_[static_cast<std::size_t>(place)]] == 0;
  }

  void add_span(std::ptrdiff_t begin, std::ptrdiff_t end, bool is_tail) {
    TileSpan span;
    span.tile_begin = static_cast<std::int32_t>(begin);
    span.num_tiles = static_cast<std::int32_t>(end - begin);
    span.num_splits = pieces_at(begin);
    span.groups_per_item = groups_ / span.num_splits;
    span.section_heads = is_tail ? list_.problem.heads_kv : section_heads(span);
    span.block_tiles = block_tiles(span);
    if (span.num_splits > 1) span.slot_heads = slot_heads(span);
    const std::int64_t items =
        list_.num_items() + std::int64_t{span.num_tiles} * span.num_splits * list_.problem.heads_kv;
    if (items > kMaxItems) throw invalid("number of work items", items, "up to 2^31 - 1025");
    // Their counters, two each, are numbered in 32 bits.
    constexpr std::int64_t kMaxOwners = std::int64_t{1} << 30;
    const std::int64_t owners = std::int64_t(places_.size()) * list_.problem.heads_kv;
    if (owners > kMaxOwners) throw invalid("k tiles times heads_kv", owners, "up to 2^30");
    span.item_begin = static_cast<std::int32_t>(list_.num_items());
    span.item_end = static_cast<std::int32_t>(items);
    span.slot_begin = static_cast<std::int32_t>(list_.num_slots());
    list_.spans.push_back(span);
  }

  /// kv heads side by side.
  std::int32_t section_heads(const TileSpan& span) const {
    const std::int32_t heads_kv = list_.problem.heads_kv;
    if (choice_.section_heads > 0) return std::min(choice_.section_heads, heads_kv);
    const std::int64_t heads = is_uneven_ ? chains(span) * section_factor_ : fitting_heads(span);
    if (heads >= heads_kv) return heads_kv;
    auto even = static_cast<std::int32_t>(heads);
    while (is_uneven_ && heads_kv % even != 0) ++even;
    return even;
  }

  /// As many as the cache holds, but enough items for every CTA; in turn all of them, as few should
  /// meet at one sum.
  std::int64_t fitting_heads(const TileSpan& span) const {
    const BackwardProblem& problem = list_.problem;
    if (choice_.is_ordered && span.num_splits == 1 && !list_.is_group_first) {
      return problem.heads_kv;
    }
    const std::int64_t column_steps = std::int64_t{list_.num_q_tiles()} * span.groups_per_item + 1;
    const std::int64_t filling = (problem.num_ctas - 1) / std::ssize(places_) + 1;
    return std::max(cached_steps_ / column_steps, filling);
  }

  /// One, as what CTAs walk at one time should be little. In turn, those that meet at a sum can
  /// begin only kTurnSteps apart, and so many chains of them lie side by side that every CTA finds
  /// an item; pieces, whose heads are few, are spread over kPieceChains.
  std::int64_t chains(const TileSpan& span) const {
    if (!list_.is_ordered) return 1;
    constexpr double kTurnSteps = 1.5;
    constexpr std::int64_t kPieceChains = 4;
    const auto first = static_cast<std::size_t>(span.tile_begin);
    std::int64_t steps = 1;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(span.num_tiles); ++i) {
      steps += costs_[places_[i]] * span.groups_per_item;
    }
    const double apart = kTurnSteps * span.num_tiles * list_.problem.num_ctas;
    const auto heads = static_cast<std::int64_t>(apart / static_cast<double>(steps)) + 1;
    return span.num_splits == 1 ? heads : std::max(heads, kPieceChains);
  }

  /// All where items are whole. Pieces: equal blocks, as few tiles as keep the CTAs away from the
  /// buffers of the block before.
  std::int32_t block_tiles(const TileSpan& span) const {
    if (span.num_splits == 1) return span.num_tiles;
    constexpr std::int32_t kRounds = 2;  // of all CTAs
    const std::int32_t most = (kRounds * list_.problem.num_ctas - 1) / span.section_heads + 1;
    const std::int32_t blocks = (span.num_tiles - 1) / most + 1;
    return (span.num_tiles - 1) / blocks + 1;
  }

  /// Whole sections, so many that who comes to a used buffer seldom waits.
  std::int32_t slot_heads(const TileSpan& span) const {
    const std::int64_t round = std::int64_t{span.section_heads} * span.block_tiles;
    std::int64_t heads = span.section_heads;
    for (std::int64_t apart = round; apart < list_.problem.num_ctas;
         apart += round * span.num_splits) {
      heads += span.section_heads;
    }
    return static_cast<std::int32_t>(std::min<std::int64_t>(heads, list_.problem.heads_kv));
  }

  BackwardList& list_;
  const BackwardTileCosts& costs_;
  const BackwardChoice& choice_;
  const std::int32_t groups_;        ///< head groups of a kv head
  const std::int64_t cached_steps_;  ///< of one item
  std::vector<std::int32_t> allowed_;
  std::vector<std::size_t> by_cost_;      ///< dearest first, ties by index
  std::vector<std::int64_t> dearest_of_;  ///< tile of the tile's island, its cost
  std::vector<std::int32_t> island_of_;
  std::size_t num_islands_ = 0;
  bool is_uneven_ = false;
  std::int32_t min_heads_ = 1;  ///< of an item that is cut
  std::int32_t section_factor_ = 1;
  std::vector<std::size_t> places_;   ///< tiles in order
  std::ptrdiff_t num_before_ = 0;     ///< places before the tail
  std::vector<std::int32_t> pieces_;  ///< of tiles
};

std::int64_t dearest(const BackwardTileCosts& costs) {
  return costs.empty() ? 0 : *std::max_element(costs.begin(), costs.end());
}

std::int64_t total(const BackwardTileCosts& costs) {
  return std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
}

/// Whether no k tile is seen by half of the rows.
bool is_narrow(const BackwardList& list, const BackwardTileCosts& costs) {
  return 2 * dearest(costs) < list.num_q_tiles();
}

/// Whether no k tile is much dearer than most.
bool are_tiles_alike(const BackwardTileCosts& costs) {
  return 4 * dearest(costs) * std::ssize(costs) <= 5 * total(costs);
}

/// Whether clearing the dQ sums costs more than waiting for a turn, as measured for windows and
/// short documents.
bool has_few_additions(const BackwardList& list, const BackwardTileCosts& costs) {
  constexpr std::int64_t kFew = 10;  // to a sum, on average
  return is_narrow(list, costs) && total(costs) < kFew * list.num_q_tiles();
}

/// How the items walk: windows come back to a q tile soon if a head is walked alone; elsewhere all
/// heads of a q tile side by side keep the CTAs that add to it in step.
void choose_walk(BackwardList& list, const BackwardTileCosts& costs, const BackwardChoice& choice) {
  const bool has_few = has_few_additions(list, costs);
  list.is_ordered = choice.is_ordered || has_few;
  list.is_finishing = has_few && are_tiles_alike(costs);
  list.is_group_first = choice.is_group_first.value_or(list.is_ordered && is_narrow(list, costs) &&
                                                       are_tiles_alike(costs));
}

Arrangement first_arrangement(const TileOrder& order) {
  const std::int64_t item_steps = order.item_steps();
  return {.item_steps = item_steps, .tail_steps = order.tail_steps(item_steps)};
}

/// Tries arrangements and keeps what is done first, by a hundredth at least.
class ArrangementSearch {
 public:
  explicit ArrangementSearch(TileOrder& order) : order_(order) { consider(best_); }

  const Arrangement& best() const { return best_; }
  std::int64_t least() const { return least_; }

  void consider(const Arrangement& by) {
    order_.arrange(by);
    const std::int64_t time = order_.finish_time();
    if (least_ >= 0 && time >= least_ - least_ / 100) return;
    least_ = time;
    best_ = by;
  }

  /// Shorter items where too few would fill the chip, and then longer ones in the tail.
  void search_steps() {
    constexpr std::int64_t kLeastSteps = 4;
    for (std::int64_t steps = best_.item_steps / 2; steps >= kLeastSteps; steps /= 2) {
      Arrangement by{.item_steps = steps, .tail_steps = order_.tail_steps(steps)};
      consider(by);
      by.tail_steps = steps;
      by.is_tail_cut_alike = true;
      consider(by);
    }
    Arrangement by = best_;
    for (by.tail_steps *= 2; by.tail_steps <= by.item_steps; by.tail_steps *= 2) consider(by);
  }

  /// Even items end in rounds: shorter ones in the tail fill the last.
  void search_tail_steps() {
    Arrangement by = best_;
    for (int halvings = 0; halvings < 3 && by.tail_steps > 1; ++halvings) {
      by.tail_steps /= 2;
      consider(by);
    }
  }

  /// Shorter tails, whose items miss the cache more, and wider sections, of which the last one
  /// leaves less idle.
  void search_tails() {
    Arrangement by = best_;
    while (by.tail_share > 1) {
      by.tail_share /= 2;
      by.section_factor = 1;
      consider(by);
      by.section_factor = 2;
      consider(by);
    }
  }

 private:
  TileOrder& order_;
  Arrangement best_ = first_arrangement(order_);
  std::int64_t least_ = -1;
};

Arrangement choose_arrangement(TileOrder& order) {
  const bool is_uneven = order.is_uneven();
  if (is_uneven ? !order.is_short() : order.is_long()) return first_arrangement(order);
  ArrangementSearch search(order);
  if (order.has_choice() && order.is_short()) search.search_steps();
  if (order.has_choice() && !is_uneven) search.search_tail_steps();
  if (is_uneven) search.search_tails();
  return search.best();
}

/// With pieces as they come, which compares packings well enough.
std::int64_t quick_time(TileOrder& order) {
  Arrangement by = first_arrangement(order);
  if (!order.is_short()) {
    order.arrange(by);
    return order.mean_time();
  }
  ArrangementSearch search(order);
  if (order.is_uneven()) {
    by.tail_share = kWholeTail / 8;
    search.consider(by);
    by.section_factor = 2;
    search.consider(by);
  }
  return search.least();
}

}  // namespace

std::int64_t modelled_time(BackwardList& list, const BackwardTileCosts& costs,
                           std::span<const std::int32_t> islands, const BackwardChoice& choice) {
  choose_walk(list, costs, choice);
  TileOrder order(list, costs, islands, choice);
  const std::int64_t time = quick_time(order);
  // Cuts of packed heads are coarser: fewer heads where little depends on it.
  const int doublings = std::countr_zero(static_cast<std::uint32_t>(list.packed_heads));
  return order.is_uneven() && !order.is_short() ? time + time * doublings / 100 : time;
}

void order_tiles(BackwardList& list, const BackwardTileCosts& costs,
                 std::span<const std::int32_t> islands, const BackwardChoice& choice) {
  choose_walk(list, costs, choice);
  TileOrder order(list, costs, islands, choice);
  order.arrange(choose_arrangement(order));
  order.put_tiles();
}

}  // namespace magi
