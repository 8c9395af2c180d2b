// SPDX-License-Identifier: Apache-2.0
#include "tools/elfgate/command_line.h"

int main(int argc, char** argv) { return gpuprof::elfgate::main_command(argc, argv); }
