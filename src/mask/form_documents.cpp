// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "mask/form_masks.hpp"

namespace magi::forms {
namespace {

/// Rows of one id that lie together.
struct Part {
  Range rows;
  std::int32_t id = 0;
};

std::vector<Part> parts_of(std::span<const std::int32_t> ids, std::optional<std::int32_t> padding) {
  std::vector<Part> parts;
  const auto count = static_cast<std::int32_t>(ids.size());
  for (std::int32_t begin = 0, end = 0; begin < count; begin = end) {
    const std::int32_t id = ids[static_cast<std::size_t>(begin)];
    while (end < count && ids[static_cast<std::size_t>(end)] == id) ++end;
    if (id != padding) parts.push_back({.rows = {begin, end}, .id = id});
  }
  return parts;
}

/// Throws for ids in so many parts that their slices would fill the memory.
void check_room(std::span<const Part> parts, bool is_causal) {
  std::map<std::int32_t, std::int64_t> num_parts;
  std::int64_t total = 0;
  for (const Part& part : parts) {
    const std::int64_t number = ++num_parts[part.id];
    total += is_causal ? number : 2 * number - 1;
  }
  if (total <= kMaxSlices) return;
  throw invalid("number of slices of document_ids", total, "at most " + std::to_string(kMaxSlices));
}

/// One side of packed sequences: where documents lie, and how many rows there are.
struct Side {
  std::vector<Range> documents;
  std::int32_t rows = 0;
};

Side side_of(const std::string& name, const Value& lengths, const Value& places) {
  check_bounds(name, lengths.numbers);
  const Value& padded = places.is_given ? places : lengths;
  if (places.is_given) {
    check_bounds(name + "_padded", places.numbers);
    check_count("entries of " + name + "_padded", places.numbers.size(), lengths.numbers.size(),
                "as " + name);
  }
  Side side{.documents = {}, .rows = padded.numbers.back()};
  for (std::size_t i = 0; i + 1 < lengths.numbers.size(); ++i) {
    const std::int32_t begin = padded.numbers[i];
    const std::int32_t length = lengths.numbers[i + 1] - lengths.numbers[i];
    const std::int32_t room = padded.numbers[i + 1] - begin;
    if (length > room) {
      throw invalid("length of document " + std::to_string(i) + " in " + name, length,
                    "at most " + std::to_string(room) + ", its room in " + name + "_padded");
    }
    side.documents.push_back({begin, begin + length});
  }
  return side;
}

}  // namespace

Mask of_cu_seqlens(Values values) {
  const std::vector<std::int32_t>& q = values[0].numbers;
  const std::vector<std::int32_t>& k = values[1].is_given ? values[1].numbers : q;
  Window window;
  if (values[3].is_given) {
    check_count("entries of window_size", values[3].numbers.size(), 2, "left and right");
    window = {.left = values[3].numbers[0], .right = values[3].numbers[1]};
  }
  if (flag_or(values[2], true)) window.right = 0;
  const bool is_causal = window == Window{.left = -1, .right = 0};
  return mask_from_cu_seqlens(
      q, k,
      {.is_causal = is_causal, .window = is_causal ? Window{} : window, .has_rows_above = true});
}

Mask of_document_ids(Values values) {
  const std::vector<std::int32_t>& ids = values[0].numbers;
  const bool is_causal = flag_or(values[1], true);
  std::optional<std::int32_t> padding;
  if (values[2].is_given) padding = values[2].numbers[0];
  const std::vector<Part> parts = parts_of(ids, padding);
  check_room(parts, is_causal);
  const auto rows = static_cast<std::int32_t>(ids.size());
  Mask mask{rows, rows, {}};
  std::map<std::int32_t, std::vector<Range>> by_id;
  for (const Part& part : parts) {
    std::vector<Range>& before = by_id[part.id];
    for (const Range other : before) {
      mask.slices.push_back(band_slice(part.rows, other, MaskType::Full));
      if (!is_causal) mask.slices.push_back(band_slice(other, part.rows, MaskType::Full));
    }
    mask.slices.push_back(
        band_slice(part.rows, part.rows, is_causal ? MaskType::Causal : MaskType::Full));
    before.push_back(part.rows);
  }
  if (by_id.size() == parts.size()) return mask;  // nothing to be joined
  return compacted(std::move(mask));
}

Mask of_window(Values values) {
  const Range rows{0, values[0].numbers[0]};
  const Window window{.left = values[1].numbers[0], .right = values[2].numbers[0]};
  return mask_from_window(rows, rows, window, rows.end, rows.end);
}

Mask of_prefix_lm(Values values) {
  check_bounds("cu_seqlens", values[0].numbers);
  check_count("prefix_lengths", values[1].numbers.size(), values[0].numbers.size() - 1,
              "one for each document of cu_seqlens");
  return mask_prefix_lm(values[0].numbers, values[1].numbers);
}

Mask of_packed_seq_params(Values values) {
  const Side q = side_of("cu_seqlens_q", values[0], values[2]);
  const Side k = side_of("cu_seqlens_kv", values[1], values[3]);
  check_count("entries of cu_seqlens_kv", k.documents.size() + 1, q.documents.size() + 1,
              "as cu_seqlens_q");
  const MaskType type = flag_or(values[4], true) ? MaskType::Causal : MaskType::Full;
  Mask mask{q.rows, k.rows, {}};
  for (std::size_t i = 0; i < q.documents.size(); ++i) {
    if (q.documents[i].empty() || k.documents[i].empty()) continue;
    mask.slices.push_back(band_slice(q.documents[i], k.documents[i], type));
  }
  return mask;
}

}  // namespace magi::forms
