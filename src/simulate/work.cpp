// SPDX-License-Identifier: Apache-2.0
#include "simulate/work.hpp"

namespace magi::simulate {
namespace {

Range rows_of_chunk(const RowParts& parts, std::int32_t chunk) {
  const std::int64_t size = parts.chunk_size();
  const auto bounded = [&](std::int64_t row) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(row, parts.num_rows));
  };
  return {bounded(chunk * size), bounded((chunk + 1) * size)};
}

/// Calls visit(chunk, part) for what a slice leaves of each chunk of queries.
template <typename Visit>
void for_query_chunks(const Mask& mask, const RowParts& parts, const Visit& visit) {
  const std::int32_t size = parts.chunk_size();
  for (const BandSlice& whole : mask.slices) {
    const BandSlice slice = shrink(whole);
    if (slice.q0 >= slice.q1) continue;
    for (std::int32_t chunk = slice.q0 / size; chunk <= (slice.q1 - 1) / size; ++chunk) {
      const BandSlice part = shrink(cut_q(slice, rows_of_chunk(parts, chunk)));
      if (part.q0 < part.q1) visit(chunk, part);
    }
  }
}

}  // namespace

void Work::add(const BandSlice& slice) {
  const std::int64_t num_rows = std::int64_t{slice.q1} - slice.q0;
  area += magi::area(slice);
  rows += num_rows;
  edges += num_rows * ((slice.d_min != -kBandInfinity) + (slice.d_max != kBandInfinity));
}

Work work_of(std::span<const BandSlice> slices) {
  Work work;
  for (const BandSlice& slice : slices) work.add(shrink(slice));
  return work;
}

std::vector<Work> query_work(const Mask& mask, const RowParts& parts) {
  std::vector<Work> work(static_cast<std::size_t>(parts.num_members));
  for_query_chunks(mask, parts, [&](std::int32_t chunk, const BandSlice& part) {
    work[static_cast<std::size_t>(parts.owner(chunk))].add(part);
  });
  return work;
}

std::vector<Work> pair_work(const Mask& mask, const RowParts& parts) {
  const auto members = static_cast<std::size_t>(parts.num_members);
  std::vector<Work> work(members * members);
  const std::int32_t size = parts.chunk_size();
  for_query_chunks(mask, parts, [&](std::int32_t chunk, const BandSlice& part) {
    Work* row = &work[static_cast<std::size_t>(parts.owner(chunk)) * members];
    for (std::int32_t keys = part.k0 / size; keys <= (part.k1 - 1) / size; ++keys) {
      const BandSlice cell = shrink(cut_k(part, rows_of_chunk(parts, keys)));
      if (cell.q0 < cell.q1) row[parts.owner(keys)].add(cell);
    }
  });
  return work;
}

}  // namespace magi::simulate
