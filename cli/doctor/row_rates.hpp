// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "magi/comm.hpp"
#include "ranks/rank_place.hpp"

// How fast rows are put into order, added and exchanged.
namespace magi::cli {

/// Bytes read and written per second where rows are copied and partial sums added.
double memory_rate(const RankPlace& place, std::int32_t rows);

struct ExchangeRates {
  double bytes_per_second = 0.0;      ///< out of a rank that sends to all others
  double seconds_per_transfer = 0.0;  ///< per peer, of an exchange of next to nothing
};
/// Times an exchange in which every rank sends `rows` rows of 2 KiB to every other. Collective.
ExchangeRates exchange_rates(Communicator& group, const RankPlace& place, std::int32_t rows);

/// The least of the ranks' values. Collective.
double least_of_ranks(Communicator& group, double value);

}  // namespace magi::cli
