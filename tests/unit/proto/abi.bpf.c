/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Compiled for BPF; the test reads the section `abi` of the object. */
#include "tests/unit/proto/abi_table.h"

__attribute__((section("abi"), used)) const struct abi_row abi_table_bpf[] = {
#include "abi_fields.inc"
};
