// SPDX-License-Identifier: Apache-2.0
#include "magi/mask.hpp"

#include "capi/handles.hpp"
#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"

namespace magi::capi {
namespace {

std::vector<Range> read_ranges(const std::int32_t* pairs, std::int64_t count, const char* name) {
  read_array(pairs, count, name);
  std::vector<Range> ranges(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i] = {pairs[2 * i], pairs[2 * i + 1]};
  return ranges;
}

std::vector<MaskType> read_types(std::span<const std::int32_t> types) {
  std::vector<MaskType> result;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] < MAGI_MASK_FULL || types[i] > MAGI_MASK_BIDIRECTIONAL_CAUSAL) {
      throw invalid("types[" + std::to_string(i) + "]", types[i], "0 to 3");
    }
    result.push_back(static_cast<MaskType>(types[i]));
  }
  return result;
}

std::vector<std::int32_t> slice_table(std::span<const BandSlice> slices) {
  std::vector<std::int32_t> table;
  table.reserve(6 * slices.size());
  for (const BandSlice& s : slices) {
    table.insert(table.end(), {s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max});
  }
  return table;
}

/// A matrix of rows_q x rows_k needs its rows checked before its size is known.
std::span<const std::uint8_t> read_matrix(const std::uint8_t* matrix, std::int32_t rows_q,
                                          std::int32_t rows_k) {
  if (rows_q < 0 || rows_q > kMaxRows) throw invalid("rows_q", rows_q, "0 to 2^30 - 1");
  if (rows_k < 0 || rows_k > kMaxRows) throw invalid("rows_k", rows_k, "0 to 2^30 - 1");
  return read_array(matrix, std::int64_t{rows_q} * rows_k, "matrix");
}

}  // namespace
}  // namespace magi::capi

using namespace magi::capi;

void magi_mask_destroy(magi_mask* mask) { delete mask; }

magi_status magi_mask_from_slices(const int32_t* slices, int64_t num_slices, int32_t rows_q,
                                  int32_t rows_k, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    read_array(slices, num_slices, "slices");
    magi::Mask made{.rows_q = rows_q, .rows_k = rows_k};
    for (int64_t i = 0; i < num_slices; ++i) {
      const int32_t* s = slices + 6 * i;
      made.slices.push_back({s[0], s[1], s[2], s[3], s[4], s[5]});
    }
    magi::validate(made);
    return made;
  });
}

magi_status magi_mask_from_ranges(const magi_range_lists* lists, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    const magi_range_lists given = read_struct(lists, "lists");
    const auto types = read_types(read_array(given.types, given.num_types, "types"));
    return magi::mask_from_ranges(read_ranges(given.q_ranges, given.num_q_ranges, "q_ranges"),
                                  read_ranges(given.k_ranges, given.num_k_ranges, "k_ranges"),
                                  types, given.rows_q, given.rows_k);
  });
}

magi_status magi_mask_from_cu_seqlens(const int32_t* cu_seqlens_q, int64_t num_entries_q,
                                      const int32_t* cu_seqlens_k, int64_t num_entries_k,
                                      const magi_document_rule* rule, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    const magi_document_rule given = read_struct(rule, "rule");
    const magi::DocumentRule documents{
        .is_causal = magi::read_flag(given.is_causal, "rule.is_causal"),
        .window = {given.window_left, given.window_right},
        .num_global = given.num_global,
        .has_rows_above = magi::read_flag(given.has_rows_above, "rule.has_rows_above")};
    return magi::mask_from_cu_seqlens(read_array(cu_seqlens_q, num_entries_q, "cu_seqlens_q"),
                                      read_array(cu_seqlens_k, num_entries_k, "cu_seqlens_k"),
                                      documents);
  });
}

magi_status magi_mask_from_window(const magi_window_mask* window, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    const magi_window_mask w = read_struct(window, "window");
    return magi::mask_from_window({w.q_begin, w.q_end}, {w.k_begin, w.k_end},
                                  {.left = w.left, .right = w.right}, w.rows_q, w.rows_k);
  });
}

magi_status magi_mask_from_matrix(const uint8_t* matrix, int32_t rows_q, int32_t rows_k,
                                  magi_mask** mask) {
  return giving(mask, "mask", [&] {
    return magi::mask_from_matrix(read_matrix(matrix, rows_q, rows_k), rows_q, rows_k);
  });
}

magi_status magi_mask_from_runs(const int64_t* offsets, int32_t rows_q, const int32_t* intervals,
                                int64_t num_intervals, int32_t rows_k, magi_mask** mask) {
  return giving(mask, "mask", [&] {
    if (rows_q < 0 || rows_q > magi::kMaxRows) {
      throw magi::invalid("rows_q", rows_q, "0 to 2^30 - 1");
    }
    return magi::mask_from_runs(read_array(offsets, int64_t{rows_q} + 1, "offsets"),
                                read_ranges(intervals, num_intervals, "intervals"), rows_k);
  });
}

magi_status magi_mask_from_form(const char* form, const magi_form_field* fields, int64_t num_fields,
                                magi_mask** mask) {
  return giving(mask, "mask", [&] {
    std::vector<magi::FormField> given;
    for (const magi_form_field& field : read_array(fields, num_fields, "fields")) {
      given.push_back(
          {.name = &require(field.name, "name of a field"),
           .numbers = read_array(field.numbers, field.num_numbers, field.name),
           .offsets = read_array(field.row_offsets, field.num_row_offsets, field.name)});
    }
    return magi::mask_from_form(&require(form, "form"), given);
  });
}

magi_status magi_mask_from_json(const char* text, size_t size_bytes, magi_mask** mask) {
  return giving(mask, "mask",
                [&] { return magi::mask_from_json(read_text(text, size_bytes, "text")); });
}

magi_status magi_mask_to_json(const magi_mask* mask, magi_buffer** text) {
  return giving(text, "text", [&] { return magi::mask_to_json(mask_of(mask)); });
}

magi_status magi_mask_rows(const magi_mask* mask, int32_t* rows_q, int32_t* rows_k) {
  return guarded([&] {
    const magi::Mask& given = mask_of(mask);
    require(rows_k, "rows_k");
    require(rows_q, "rows_q") = given.rows_q;
    *rows_k = given.rows_k;
  });
}

magi_status magi_mask_slices(const magi_mask* mask, magi_buffer** slices) {
  return giving(slices, "slices", [&] { return slice_table(mask_of(mask).slices); });
}

magi_status magi_mask_typed_slices(const magi_mask* mask, magi_buffer** slices) {
  return giving(slices, "slices", [&] {
    std::vector<int32_t> table;
    for (const magi::BandSlice& slice : mask_of(mask).slices) {
      for (const magi::TypedSlice& t : magi::to_typed(slice)) {
        table.insert(table.end(),
                     {t.q.begin, t.q.end, t.k.begin, t.k.end, static_cast<int32_t>(t.type)});
      }
    }
    return table;
  });
}

magi_status magi_mask_runs(const magi_mask* mask, magi_buffer** offsets, magi_buffer** runs) {
  return giving(runs, "runs", [&] {
    require(offsets, "offsets");
    const magi::RowRuns found = magi::runs_of(mask_of(mask));
    std::vector<int32_t> table;
    table.reserve(2 * found.runs.size());
    for (const magi::Range run : found.runs) table.insert(table.end(), {run.begin, run.end});
    auto made = handle_of(table);
    *offsets = handle_of(found.offsets).release();
    return made;
  });
}

magi_status magi_mask_transpose(const magi_mask* mask, magi_mask** transposed) {
  return giving(transposed, "mask", [&] { return magi::transposed(mask_of(mask)); });
}

magi_status magi_mask_area(const magi_mask* mask, int64_t* area) {
  return guarded([&] { require(area, "area") = magi::area(mask_of(mask)); });
}

magi_status magi_mask_reach(const magi_mask* mask, int32_t* before, int32_t* after) {
  return guarded([&] {
    require(before, "before");
    require(after, "after");
    const magi::Reach reach = magi::reach(mask_of(mask));
    *before = reach.before;
    *after = reach.after;
  });
}
