// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/in_flight_keys.hpp"

#include <algorithm>
#include <string>

#include "base/check.hpp"

namespace magi {

std::uint32_t sources_of(const InFlightKeys& coming, Range rows) {
  if (rows.empty()) return 0;
  const auto begin =
      std::upper_bound(coming.parts.begin(), coming.parts.end(), rows.begin,
                       [](std::int32_t row, const KeyPart& part) { return row < part.rows.end; });
  std::uint32_t sources = 0;
  for (auto part = begin; part != coming.parts.end() && part->rows.begin < rows.end; ++part) {
    sources |= std::uint32_t{1} << part->source;
  }
  return sources;
}

std::vector<BandSlice> cut_at_own_rows(const InFlightKeys& coming,
                                       std::span<const BandSlice> slices) {
  std::vector<BandSlice> cut;
  for (const BandSlice& slice : slices) {
    if (coming.own_rows <= slice.k0 || coming.own_rows >= slice.k1) {
      cut.push_back(slice);
      continue;
    }
    for (const Range keys : {Range{slice.k0, coming.own_rows}, Range{coming.own_rows, slice.k1}}) {
      const BandSlice part = shrink(cut_k(slice, keys));
      if (part.q0 < part.q1) cut.push_back(part);
    }
  }
  return cut;
}

void check_in_flight_keys(const InFlightKeys& coming, std::int64_t rows_k, std::int64_t heads_kv) {
  if (coming.num_sources < 0 || coming.num_sources > kMaxKeySources) {
    throw invalid("coming.num_sources", coming.num_sources,
                  "0 to " + std::to_string(kMaxKeySources));
  }
  if (coming.num_sections < 1 || heads_kv % coming.num_sections != 0) {
    throw invalid("coming.num_sections", coming.num_sections,
                  "divisors of heads_kv, " + std::to_string(heads_kv));
  }
  if (coming.own_rows < 0 || coming.own_rows > rows_k) {
    throw invalid("coming.own_rows", coming.own_rows, "0 to " + std::to_string(rows_k));
  }
  std::int32_t earlier_end = coming.own_rows;
  for (std::size_t i = 0; i < coming.parts.size(); ++i) {
    const KeyPart& part = coming.parts[i];
    const std::string name = "coming.parts[" + std::to_string(i) + "]";
    if (part.rows.begin < earlier_end || part.rows.end > rows_k || part.rows.empty()) {
      throw invalid(name + ".rows",
                    std::to_string(part.rows.begin) + " to " + std::to_string(part.rows.end),
                    "rows from " + std::to_string(earlier_end) + " to " + std::to_string(rows_k));
    }
    if (part.source < 0 || part.source >= coming.num_sources) {
      throw invalid(name + ".source", part.source,
                    "sources below " + std::to_string(coming.num_sources));
    }
    earlier_end = part.rows.end;
  }
}

}  // namespace magi
