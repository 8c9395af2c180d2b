// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti {

/// CUPTI's hash callback (cuptiRegisterComputeCrcCallback): called on the loading thread with the
/// whole ELF image of every module, JIT output included, without any subscriber; what it answers is
/// what PC records carry as cubinCrc. Hashes, appends to the module table; takes no lock, allocates
/// nothing, calls no CUPTI. Registered once at init: it is not called for modules loaded before.
void on_hash(const void* image, size_t size_bytes, uint64_t* hash) noexcept;

/// MODULE_LOADED while subscribed: fires module_v1 if `armed`, so that the image is read while it
/// is there. Its address outlives the hash callback's (44 of 44 against 40 of 44 still readable at
/// exit), so a module whose address differs gets an entry of its own.
void on_module_loaded(const void* image, size_t size_bytes, bool armed) noexcept;

/// MODULE_UNLOAD_STARTING: the image is copied if `keep`, within GPU_PROFILED_MODULE_BYTES, and
/// module_v1 fires if `armed`. Only the tiers of PC sampling have a use for an image.
void on_module_unloading(const void* image, size_t size_bytes, bool armed, bool keep) noexcept;

}  // namespace gpuprof::cupti
