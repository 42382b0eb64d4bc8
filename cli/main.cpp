// SPDX-License-Identifier: Apache-2.0
#include "commands.hpp"

int main(int argc, char** argv) { return magi::cli::run_command(argc, argv); }
