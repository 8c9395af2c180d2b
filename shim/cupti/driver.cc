// SPDX-License-Identifier: Apache-2.0
#include "shim/cupti/driver.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "proto/libcuda_kind.h"
#include "shim/core/metadata.h"
#include "shim/core/self.h"

namespace gpuprof::cupti {
namespace {

/// A function of the mapped libcuda, or null.
template <typename Function>
Function driver_function(const Driver& driver, const char* name) noexcept {
  return reinterpret_cast<Function>(dlsym(driver.library, name));
}

void read_kernel_version(char* out, size_t capacity) noexcept {
  char text[512];
  if (shim::read_small_file("/sys/module/nvidia/version", text, sizeof text) > 0) {
    text[strcspn(text, "\n")] = '\0';
    copy_path(text, out, capacity);
    return;
  }
  // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build ..."
  if (shim::read_small_file("/proc/driver/nvidia/version", text, sizeof text) <= 0) return;
  text[strcspn(text, "\n")] = '\0';
  char* rest = nullptr;
  for (char* word = strtok_r(text, " \t", &rest); word != nullptr;
       word = strtok_r(nullptr, " \t", &rest)) {
    if (word[0] < '0' || word[0] > '9' || strchr(word, '.') == nullptr) continue;
    copy_path(word, out, capacity);
    return;
  }
}

/// What device_v1 needs of libcuda. cuDeviceGetUuid_v2 (11.4) tells MIG instances apart.
struct DeviceFunctions {
  explicit DeviceFunctions(const Driver& driver) noexcept
      : count(driver_function<decltype(count)>(driver, "cuDeviceGetCount")),
        get(driver_function<decltype(get)>(driver, "cuDeviceGet")),
        attribute(driver_function<decltype(attribute)>(driver, "cuDeviceGetAttribute")),
        name(driver_function<decltype(name)>(driver, "cuDeviceGetName")),
        uuid(driver_function<decltype(uuid)>(driver, "cuDeviceGetUuid_v2")),
        memory(driver_function<decltype(memory)>(driver, "cuDeviceTotalMem_v2")) {
    if (uuid == nullptr) uuid = driver_function<decltype(uuid)>(driver, "cuDeviceGetUuid");
  }

  CUresult (*count)(int*);
  CUresult (*get)(CUdevice*, int);
  CUresult (*attribute)(int*, CUdevice_attribute, CUdevice);
  CUresult (*name)(char*, int, CUdevice);
  CUresult (*uuid)(CUuuid*, CUdevice);
  CUresult (*memory)(size_t*, CUdevice);
};

uint32_t read_attribute(const DeviceFunctions& cuda, CUdevice device, CUdevice_attribute which) {
  int value = 0;
  if (cuda.attribute == nullptr || cuda.attribute(&value, which, device) != CUDA_SUCCESS) return 0;
  return value < 0 ? 0 : static_cast<uint32_t>(value);
}

void read_device(const DeviceFunctions& cuda, uint32_t ordinal, CUdevice device,
                 gpuprof_device_v1* out) noexcept {
  out->device_id = ordinal;
  out->sm_count = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  out->compute_major = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  out->compute_minor = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  out->clock_khz = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  out->pci_domain = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
  out->pci_bus = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
  out->pci_device = read_attribute(cuda, device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
  size_t memory_bytes = 0;
  if (cuda.memory != nullptr && cuda.memory(&memory_bytes, device) == CUDA_SUCCESS) {
    out->memory_bytes = memory_bytes;
  }
  CUuuid uuid;
  static_assert(sizeof uuid == sizeof out->uuid);
  if (cuda.uuid != nullptr && cuda.uuid(&uuid, device) == CUDA_SUCCESS) {
    memcpy(out->uuid, &uuid, sizeof uuid);
  }
  if (cuda.name != nullptr) {
    if (cuda.name(out->name, sizeof out->name, device) != CUDA_SUCCESS) out->name[0] = '\0';
    out->name[sizeof out->name - 1] = '\0';
  }
}

}  // namespace

void find_driver(const MappedObjects& objects, Driver* driver) noexcept {
  read_kernel_version(driver->kernel_version, sizeof driver->kernel_version);
  const char* mapped = objects.find("libcuda.so");
  if (mapped == nullptr) return;
  if (char* real = realpath(mapped, nullptr); real != nullptr) {
    copy_path(real, driver->path, sizeof driver->path);
    free(real);
  } else {
    copy_path(mapped, driver->path, sizeof driver->path);
  }
  driver->kind = libcuda_kind_of(driver->path, driver->kernel_version);
  driver->library = dlopen(mapped, RTLD_LAZY | RTLD_NOLOAD);
  if (driver->library == nullptr) return;
  auto* get_version = driver_function<CUresult (*)(int*)>(*driver, "cuDriverGetVersion");
  int version = 0;
  if (get_version != nullptr && get_version(&version) == CUDA_SUCCESS && version > 0) {
    driver->version = static_cast<uint32_t>(version);
  }
}

bool can_start_cupti_13_2(const Driver& driver) noexcept {
  constexpr CUuuid kTable = {{0x7c, static_cast<char>(0xb6), 0x3f, static_cast<char>(0x9b),
                              static_cast<char>(0x9c), static_cast<char>(0xa4),
                              static_cast<char>(0x8e), 0x42, static_cast<char>(0xa4),
                              static_cast<char>(0x84), static_cast<char>(0xbe),
                              static_cast<char>(0xb6), 0x6e, 0x6a, static_cast<char>(0xed), 0x7f}};
  if (driver.library == nullptr) return false;
  auto* get_table =
      driver_function<CUresult (*)(const void**, const CUuuid*)>(driver, "cuGetExportTable");
  const void* table = nullptr;
  return get_table != nullptr && get_table(&table, &kTable) == CUDA_SUCCESS && table != nullptr;
}

uint32_t publish_devices(const Driver& driver) noexcept {
  if (driver.library == nullptr) return 0;
  const DeviceFunctions cuda(driver);
  int count = 0;
  if (cuda.count == nullptr || cuda.get == nullptr || cuda.count(&count) != CUDA_SUCCESS) return 0;
  uint32_t published = 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device;
    if (cuda.get(&device, ordinal) != CUDA_SUCCESS) continue;
    gpuprof_device_v1 record = {};
    read_device(cuda, static_cast<uint32_t>(ordinal), device, &record);
    if (shim::publish_device(record)) ++published;
  }
  return published;
}

}  // namespace gpuprof::cupti
