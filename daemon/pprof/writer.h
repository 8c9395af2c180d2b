// SPDX-License-Identifier: Apache-2.0
//
// serialize(): a joined model as a gzipped pprof file.
#pragma once

#include <string>

#include "daemon/base/result.h"
#include "daemon/join/model.h"

namespace gpuprof::pprof {

// The bytes of a .pb.gz file. Every module becomes a Mapping with an address range of its own,
// disjoint from all others and page-aligned, and its locations are moved there: with equal
// addresses pprof's source view bills one function for another. Fails (kInternal) only on a model
// whose indices do not fit together, or where zlib has no memory.
Result<std::string> serialize(const join::Model& model);

}  // namespace gpuprof::pprof
