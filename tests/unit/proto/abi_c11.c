/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/proto/abi_table.h"

const struct abi_row kAbiTableC11[] = {
#include "abi_fields.inc"
};
const uint32_t kAbiTableC11Rows = sizeof kAbiTableC11 / sizeof kAbiTableC11[0];
