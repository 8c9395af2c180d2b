/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The ABI headers' sizes and offsets as this language and this target see them: one row for every
 * line of abi_fields.inc (made by abi_fields.py). The same text is compiled as C11, as C++20 and
 * for BPF, and the three tables are compared.
 */
#pragma once

#include "proto/memfd_layout.h"
#include "proto/ring_abi.h"
#include "proto/usdt_abi.h"

struct abi_row {
  uint32_t size;
  uint32_t offset_plus_one; /* 0: the row is a struct */
};

#define S(type) {sizeof(struct type), 0},
#define M(type, member) \
  {sizeof(((struct type*)0)->member), __builtin_offsetof(struct type, member) + 1},
