/* SPDX-License-Identifier: Apache-2.0 */
#include <magi/magi.h>
#include <stdio.h>

int main(void) {
  magi_comm_options options;
  magi_comm_options_init(&options);
  magi_communicator* ranks[2] = {NULL, NULL};
  if (magi_thread_group_create(2, &options, ranks) != MAGI_OK) return 1;
  printf("magi %s, %s\n", magi_version(), magi_communicator_backend(ranks[1]));
  for (int rank = 0; rank < 2; ++rank) magi_communicator_destroy(ranks[rank]);
  return magi_abi_version() == MAGI_ABI_VERSION ? 0 : 1;
}
