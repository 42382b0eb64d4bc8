// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

// The control words of ranks that write each other's device memory: who writes and who reads them.
//
// A pass is the forward or backward of one layer, or a single exchange. Ranks begin the same passes
// in the same order and number them from 1. Every wait is for a word to reach the number of a pass:
// words grow and are never reset. The number of the present pass is in device memory, so that a
// captured graph that begins passes can be replayed.
//
//   begin pass g   own digest, then g -> `digest`, `begun` of every peer: by the first push of the
//                  pass, if all its blocks are few enough to wait for credit, else before it;
//                  of a new plan: await own `begun` of every peer >= g and compare digests
//   push of move m rows -> their places at the peers; then g -> `arrived`[m][section] there
//   await of m     own `arrived`[m][section] of every sending peer >= g; if a kernel has written
//                  this rank's rows of m at the peers, first g -> `arrived`[m] there
//
// Credit: if `begun` of a peer is above g, the peer has finished pass g, because passes of a rank
// follow each other in stream order. If pass g was the last to use an area of the window, a rank
// writes there only once every peer's `begun` is above g. With two areas in turn it waits only for
// a peer that is two passes late.
//
// A digest covers the plan, the call, and the number of passes that the host had begun before, so
// that ranks that call or replay in different orders have different digests. A wait for rows
// compares its digest with those of all peers that have begun the pass. Digests of the others are
// compared two passes later, with the credit.
namespace magi::comm {

inline constexpr std::int32_t kMaxPeers = 16;    ///< ranks of a group of one host
inline constexpr std::int32_t kMaxMoves = 128;   ///< moves of a pass
inline constexpr std::int32_t kMaxSections = 8;  ///< arrival chunks of a move
inline constexpr std::int32_t kKeptDigests = 4;  ///< a rank is at most two passes ahead
inline constexpr std::int32_t kMaxAreas = 64;

/// One rank's words in its device memory, which the peers write; [.][p]: written by rank p.
struct PeerControl {
  std::uint64_t begun[kMaxPeers];
  std::uint64_t digest[kKeptDigests][kMaxPeers];  ///< by pass mod kKeptDigests
  std::uint64_t aborted[kMaxPeers];               ///< not 0: rank p has left the group
  std::uint64_t magic[kMaxPeers];                 ///< shows at the start that p can write here
  std::uint64_t arrived[kMaxMoves][kMaxSections][kMaxPeers];
};

/// The words that a rank keeps in its device memory for itself.
struct PassState {
  std::uint64_t pass;
  std::uint64_t last_use[kMaxAreas];   ///< pass that used an area last
  std::uint64_t digest[kKeptDigests];  ///< by pass mod kKeptDigests
  std::uint64_t is_failed;             ///< not 0: a wait has failed, and nothing is sent after it
  unsigned pushed_blocks[kMaxMoves][kMaxSections];  ///< 0 between pushes
  unsigned copied_blocks[kMaxMoves];                ///< likewise, for own rows
  unsigned begun_blocks;                            ///< likewise, in a push that begins the pass
  unsigned is_reported;  ///< not 0: a wait has claimed the mailbox for its failure
  unsigned is_noted;     ///< not 0: a wait has claimed it for its subject when it was stopped
};

/// The subject of a wait on the device, when it ended without success.
enum class PeerWait : std::int32_t { None, Credit, Rows, OtherPlan, Left };

/// The first failure of a rank's waits, in host memory that the device sees.
struct PeerMailbox {
  std::int32_t is_closed;  ///< set by the host, or by the device after `failed`: waits end at once
  PeerWait failed;         ///< set by the device, after the members below
  std::int32_t peer;
  std::int32_t move;
  std::uint64_t expected, seen;
  std::uint64_t digest, peer_digest;

  // The first wait that ended because the box was closed.
  PeerWait stopped;  ///< set after the members below
  std::int32_t stopped_peer;
  std::int32_t stopped_move;
  std::uint64_t stopped_pass;
};

/// The group for one rank's kernels, passed by value.
struct PeerView {
  PeerControl* control[kMaxPeers];  ///< by rank
  PassState* state = nullptr;
  PeerMailbox* mailbox = nullptr;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::uint64_t deadline_ns = 0;
};

}  // namespace magi::comm
