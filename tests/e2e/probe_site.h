// SPDX-License-Identifier: Apache-2.0
//
// A small library with the shim's own probe sites (shim/core/usdt_sites.S), fired at will.
#pragma once

#include <cstdint>

extern "C" {

// Fires whether anybody is attached or not; nothing is checked or counted.
void probe_site_fire(uint32_t probe, const void* records, uint32_t count, uint64_t seq);

// Address of the probe's 1-byte nop.
const uint8_t* probe_site_address(uint32_t probe);

uint16_t probe_site_semaphore(uint32_t probe);

// Registers on either side of one site: rax rbx rcx rdx rsi rdi rbp rsp r8..r15, then flags.
struct ProbeSiteRegisters {
  uint64_t before[17];
  uint64_t after[17];
};

#if defined(__x86_64__)
// Loads a distinct value into every register that the arguments leave free, fires launch_v1 with
// `record` and sequence number `seq`, and stores all registers on either side of the site.
void probe_site_fire_registers(const void* record, uint64_t seq, ProbeSiteRegisters* out);
#endif
}
