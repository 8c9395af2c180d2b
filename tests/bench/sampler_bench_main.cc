// SPDX-License-Identifier: Apache-2.0
extern "C" int sampler_bench(int argc, char** argv);
int main(int argc, char** argv) { return sampler_bench(argc, argv); }
