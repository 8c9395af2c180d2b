// SPDX-License-Identifier: Apache-2.0
#include "daemon/cli/command_line.h"

int main(int argc, char** argv) { return gpuprof::cli::main_command(argc, argv); }
