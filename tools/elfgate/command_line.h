// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuprof::elfgate {

// 0: every file passes; 1: a violation; 2: usage, or a file that cannot be read.
int main_command(int argc, char** argv);

}  // namespace gpuprof::elfgate
