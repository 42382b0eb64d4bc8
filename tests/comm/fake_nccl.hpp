// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the library of tests/comm/fake_nccl.cpp exports beside NCCL's functions.
extern "C" {
/// The next look at a communicator of `rank` finds this result.
void fake_nccl_report(int rank, int result);
/// Communicators that were neither destroyed nor aborted.
int fake_nccl_num_live();
int fake_nccl_num_aborts();
/// The max_ctas that the last communicator was asked for.
int fake_nccl_max_ctas();
}
