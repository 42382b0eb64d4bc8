// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// What ranks that write each other's device memory tell each other, and who reads it.
//
// A pass is the forward or backward of one layer, or one exchange by itself. Ranks begin the same
// passes in the same order and number them from 1. All waits are for a word to reach the number of
// a pass: words grow and are never reset, and the number of the present pass is in device memory,
// so that a captured graph that begins passes may be replayed.
//
//   begin pass g   own digest, then g -> `digest`, `begun` of every peer: by the first push of the
//                  pass, if all its blocks are few enough to wait for credit, else before it;
//                  of a new plan: await own `begun` of every peer >= g and compare digests
//   push of move m rows -> their places at the peers; then g -> `arrived`[m][section] there
//   await of m     own `arrived`[m][section] of every peer that sends >= g; where a kernel has
//                  written what m brings to the peers, first g -> `arrived`[m] there
//
// Credit: `begun` of a peer above g shows that the peer has done with pass g, as passes of a rank
// follow each other in stream order. Rows are written to an area of the window that pass g used
// last only when every peer's `begun` is above g. With two areas in turn nobody waits for that, but
// for a peer that is two passes behind.
//
// A digest stands for the plan, the call, and the number of passes that the host had begun before,
// so that ranks which call or replay in another order have other digests. Who awaits rows compares
// its digest with those of all peers that have begun the pass; what was not known by then is
// compared two passes later, with the credit.
namespace magi::comm {

inline constexpr std::int32_t kMaxPeers = 16;    ///< ranks of a group of one host
inline constexpr std::int32_t kMaxMoves = 128;   ///< of a pass
inline constexpr std::int32_t kMaxSections = 8;  ///< in which the heads of a move arrive
inline constexpr std::int32_t kKeptDigests = 4;  ///< a rank is at most two passes ahead
inline constexpr std::int32_t kMaxAreas = 64;

/// One rank's words in its device memory, which the peers write; [.][p]: written by rank p.
struct PeerControl {
  std::uint64_t begun[kMaxPeers];
  std::uint64_t digest[kKeptDigests][kMaxPeers];  ///< by pass mod kKeptDigests
  std::uint64_t aborted[kMaxPeers];               ///< not 0: rank p has left the group
  std::uint64_t magic[kMaxPeers];                 ///< proves at the start that p can write here
  std::uint64_t arrived[kMaxMoves][kMaxSections][kMaxPeers];
};

/// The words that a rank keeps in its device memory for itself.
struct PassState {
  std::uint64_t pass;
  std::uint64_t last_use[kMaxAreas];   ///< pass that used an area last
  std::uint64_t digest[kKeptDigests];  ///< by pass mod kKeptDigests
  std::uint64_t is_failed;             ///< not 0: a wait has failed, nothing is sent any more
  unsigned pushed_blocks[kMaxMoves][kMaxSections];  ///< 0 between pushes
  unsigned copied_blocks[kMaxMoves];                ///< of rows that stay; likewise
  unsigned begun_blocks;  ///< of a push that begins the pass; 0 between pushes
  unsigned is_reported;   ///< not 0: a wait has taken the mailbox for its failure
  unsigned is_noted;      ///< not 0: a wait has taken it for where it was stopped
};

/// The subject of a wait on the device, when it ended without success.
enum class PeerWait : std::int32_t { None, Credit, Rows, OtherPlan, Left };

/// The first failure of a rank's waits, in host memory that the device sees.
struct PeerMailbox {
  std::int32_t is_closed;  ///< set by the host, or by the device behind `failed`: waits end at once
  PeerWait failed;         ///< set by the device, after the rest
  std::int32_t peer;
  std::int32_t move;
  std::uint64_t expected, seen;
  std::uint64_t digest, peer_digest;

  // Where the first wait stood that ended because the box was closed.
  PeerWait stopped;  ///< set after the rest
  std::int32_t stopped_peer;
  std::int32_t stopped_move;
  std::uint64_t stopped_pass;
};

/// A group as one rank's kernels see it, passed by value.
struct PeerView {
  PeerControl* control[kMaxPeers];  ///< by rank
  PassState* state = nullptr;
  PeerMailbox* mailbox = nullptr;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::uint64_t deadline_ns = 0;
};

}  // namespace magi::comm
