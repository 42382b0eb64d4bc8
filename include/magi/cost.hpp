// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace magi {

/// Rates used to predict time and to compare plans. Defaults: H200.
struct CostModel {
  double flops_per_second = 600e12;  ///< attention forward of a rank: 4 a pair, head and element
  double backward_flops_per_second = 520e12;  ///< attention backward of a rank: 10 of these
  double bytes_per_second = 275e9;            ///< out of one rank, inside a node
  double memory_bytes_per_second = 3.6e12;    ///< read and written where rows are merged or copied
  double seconds_per_transfer = 2e-6;         ///< per peer and exchange
  double seconds_per_launch = 5e-6;           ///< per attention call
  /// The seconds, in each pass, that recurrent layers beside attention take for a run that comes
  /// after a row of another rank. 0: there are none.
  double seconds_per_run = 0.0;
  // Between nodes, where a plan knows of several. Not measured: 90 % of a card of 400 Gbit/s each.
  double network_bytes_per_second = 45e9;      ///< out of one rank
  double network_seconds_per_transfer = 5e-6;  ///< per peer in another node and exchange
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

/// Throws InvalidArgument naming the first constant that is out of range: rates are finite and
/// above 0, delays 0 to 1 second.
void validate(const CostModel& cost);

/// The number of rows that may move inside a node in the time of one between nodes: a whole number
/// from 1 to 1024.
std::int32_t crossing_price(const CostModel& cost);

/// The constants of one machine, and what it is.
struct CostFile {
  std::string machine;  ///< printable ASCII without quotes and backslashes, up to 200 characters
  CostModel cost;
  friend bool operator==(const CostFile&, const CostFile&) = default;
};

/// JSON text: "format" ("magi cost"), "version" (1), "machine" and the constants by their names.
/// Reading refuses unknown, repeated and missing keys and what validate refuses; both throw
/// InvalidArgument.
std::string cost_file_to_json(const CostFile& file);
CostFile cost_file_from_json(std::string_view text);

}  // namespace magi
