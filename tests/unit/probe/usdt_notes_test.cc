// SPDX-License-Identifier: Apache-2.0
#include "daemon/probe/usdt_notes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "daemon/base/unique_fd.h"

namespace gpuprof::probe {
namespace {

using Image = std::vector<uint8_t>;

// A library of nothing but shim/core/usdt_sites.S.
Image sites_library() {
  const UniqueFd fd(open(PROBE_SITES_LIBRARY, O_RDONLY | O_CLOEXEC));
  auto image = read_shim_file(fd.get());
  EXPECT_TRUE(image) << (image ? "" : image.error().message);
  return image ? *image : Image{};
}

// Offset of `text` in the image; the n-th if it occurs more than once.
size_t find(const Image& image, std::string_view text, int n = 0) {
  auto at = image.begin();
  for (int i = 0;; i++) {
    at = std::search(at, image.end(), text.begin(), text.end());
    if (at == image.end()) {
      ADD_FAILURE() << "no " << text;
      return 0;
    }
    if (i == n) return static_cast<size_t>(at - image.begin());
    ++at;
  }
}

void replace(Image& image, std::string_view from, std::string_view to, int n = 0) {
  ASSERT_LE(to.size(), from.size());
  const size_t at = find(image, from, n);
  std::fill_n(image.begin() + at, from.size(), 0);
  std::copy(to.begin(), to.end(), image.begin() + at);
}

std::string message_of(const Image& image) {
  auto sites = parse_usdt_notes(image);
  return sites ? "no error" : sites.error().message;
}

using std::string_view_literals::operator""sv;

TEST(UsdtNotes, FindsEverySiteOfTheShim) {
  const Image image = sites_library();
  auto sites = parse_usdt_notes(image);
  ASSERT_TRUE(sites) << sites.error().message;
  ASSERT_EQ(sites->size(), GPUPROF_PROBE_COUNT - 1u);
  for (size_t i = 0; i < sites->size(); i++) {
    const ProbeSite& site = (*sites)[i];
    EXPECT_EQ(site.probe, i + 1);
    EXPECT_EQ(site.semaphore_offset, sites->front().semaphore_offset + 2 * i);
#if defined(__x86_64__)
    EXPECT_TRUE(site.has_nop5);
    const uint8_t code[] = {0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3};
    EXPECT_TRUE(std::equal(code, code + 7, image.begin() + site.offset));
#endif
  }
  EXPECT_EQ(probe_name(GPUPROF_PROBE_LAUNCH), "launch_v1");
  EXPECT_EQ(probe_name(77), "?");
}

TEST(UsdtNotes, OtherProvidersAndNewerProbesAreSkipped) {
  Image image = sites_library();
  replace(image, "window_v1\0"sv, "window_v2\0"sv);
  replace(image, "gpu_profiled\0module_v1"sv, "xpu_profiled\0module_v1"sv);
  uint64_t unknown = 77;
  auto sites = parse_usdt_notes(image, &unknown);
  ASSERT_TRUE(sites) << sites.error().message;
  EXPECT_EQ(sites->size(), GPUPROF_PROBE_COUNT - 3u);
  EXPECT_EQ(unknown, 1u) << "of our provider's";
}

TEST(UsdtNotes, ARequiredProbeIsMissed) {
  Image image = sites_library();
  replace(image, "gpu_profiled\0exec_v1"sv, "gpu_profiled\0exec_v9"sv);
  auto sites = parse_usdt_notes(image);
  ASSERT_FALSE(sites);
  EXPECT_EQ(sites.error().code, Code::kNotFound);
  EXPECT_NE(sites.error().message.find("exec_v1"), std::string::npos);
}

TEST(UsdtNotes, TwoSitesOfAProbeAreRefused) {
  Image image = sites_library();
  replace(image, "gpu_profiled\0window_v1"sv, "gpu_profiled\0device_v1"sv);
  EXPECT_EQ(message_of(image), "shim file: device_v1 has two sites");
}

TEST(UsdtNotes, OtherArgumentsAreRefused) {
  Image image = sites_library();
#if defined(__x86_64__)
  replace(image, "process_v1\0008@%rdi"sv, "process_v1\0008@%rsi"sv);
#else
  replace(image, "process_v1\0008@x0"sv, "process_v1\0008@x3"sv);
#endif
  EXPECT_EQ(message_of(image), "shim file: process_v1 has unknown arguments");
}

// The three addresses of a note lie right before its provider.
size_t addresses_of(const Image& image, std::string_view provider_and_name) {
  return find(image, provider_and_name) - 24;
}

TEST(UsdtNotes, AddressesOutsideTheFileAreRefused) {
  const Image good = sites_library();
  const size_t at = addresses_of(good, "gpu_profiled\0launch_v1"sv);
  const auto with = [&](size_t field, uint64_t value) {
    Image image = good;
    std::memcpy(&image[at + 8 * field], &value, 8);
    return message_of(image);
  };
  for (const uint64_t bad : {uint64_t{1} << 40, ~uint64_t{0}, ~uint64_t{0} - 4}) {
    EXPECT_EQ(with(0, bad), "shim file: launch_v1 lies outside the code") << bad;
    EXPECT_EQ(with(2, bad), "shim file: launch_v1's semaphore lies outside the data") << bad;
  }
  EXPECT_EQ(with(2, 0), "shim file: launch_v1 has no semaphore");
  uint64_t semaphore = 0;
  std::memcpy(&semaphore, &good[at + 16], 8);
  EXPECT_EQ(with(2, semaphore + 1), "shim file: launch_v1's semaphore lies outside the data");
  uint64_t pc = 0;
  std::memcpy(&pc, &good[at], 8);
  EXPECT_EQ(with(0, pc + 6), "shim file: launch_v1's site is not a nop");
}

TEST(UsdtNotes, SitesThatAreNoNopsAreRefused) {
  Image image = sites_library();
  auto sites = parse_usdt_notes(image);
  ASSERT_TRUE(sites);
  Image broken = image;
  broken[(*sites)[1].offset] = 0xcc;
  EXPECT_EQ(message_of(broken), "shim file: launch_v1's site is not a nop");
#if defined(__x86_64__)
  // Without the 5-byte nop there is still the other one.
  Image old = image;
  old[(*sites)[1].offset + 2] = 0x90;
  auto parsed = parse_usdt_notes(old);
  ASSERT_TRUE(parsed);
  EXPECT_FALSE((*parsed)[1].has_nop5);
  EXPECT_TRUE((*parsed)[2].has_nop5);
#endif
}

TEST(UsdtNotes, PrelinkedNotesMoveWithTheirBase) {
  const Image good = sites_library();
  Image moved = good;
  for (const char* name : {"process_v1", "launch_v1", "exec_v1", "pc_sample_v1", "name_v1",
                           "module_v1", "device_v1", "window_v1", "drop_v1", "autoarm"}) {
    const std::string key = std::string("gpu_profiled") + '\0' + name;
    const size_t at = addresses_of(good, key);
    for (size_t field = 0; field < 3; field++) {
      uint64_t value = 0;
      std::memcpy(&value, &moved[at + 8 * field], 8);
      value += 0x10000;  // where the notes believe the library was linked
      std::memcpy(&moved[at + 8 * field], &value, 8);
    }
  }
  auto expected = parse_usdt_notes(good);
  auto sites = parse_usdt_notes(moved);
  ASSERT_TRUE(expected);
  ASSERT_TRUE(sites) << sites.error().message;
  for (size_t i = 0; i < sites->size(); i++) {
    EXPECT_EQ((*sites)[i].offset, (*expected)[i].offset);
    EXPECT_EQ((*sites)[i].semaphore_offset, (*expected)[i].semaphore_offset);
  }
}

TEST(UsdtNotes, ForeignFilesAreNamedAsSuch) {
  EXPECT_EQ(message_of({}), "shim file: not an ELF file");
  EXPECT_EQ(message_of(Image(4096, 'x')), "shim file: not an ELF file");
  Image image = sites_library();
  image[18] ^= 1;  // e_machine
  EXPECT_EQ(parse_usdt_notes(image).error().code, Code::kUnsupported);
  const UniqueFd null(open("/dev/null", O_RDONLY));
  EXPECT_FALSE(read_shim_file(null.get()));
  const UniqueFd directory(open("/", O_RDONLY));
  EXPECT_FALSE(read_shim_file(directory.get()));
  const UniqueFd huge(memfd_create("huge", 0));
  ASSERT_EQ(ftruncate(huge.get(), static_cast<off_t>(kMaxShimBytes) + 1), 0);
  EXPECT_FALSE(read_shim_file(huge.get()));
}

TEST(UsdtNotes, EveryTruncationIsAnErrorOrTheSameAnswer) {
  const Image image = sites_library();
  auto whole = parse_usdt_notes(image);
  ASSERT_TRUE(whole);
  size_t errors = 0;
  for (size_t bytes = 0; bytes < image.size(); bytes += bytes < 8192 ? 1 : 61) {
    const Image cut(image.begin(), image.begin() + static_cast<ptrdiff_t>(bytes));
    auto sites = parse_usdt_notes(cut);
    if (!sites) {
      errors++;
    } else {
      EXPECT_EQ(sites->size(), whole->size());
    }
  }
  EXPECT_GT(errors, 1000u);
}

// No corruption makes the parser crash, or hand out a site that is not a nop inside the file.
TEST(UsdtNotes, RandomCorruptionNeverYieldsABadSite) {
  const Image good = sites_library();
  std::mt19937_64 random(11);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 20'000; round++) {
    Image image = good;
    const size_t flips = 1 + random() % 16;
    for (size_t i = 0; i < flips; i++) {
      // Headers, notes and section table are where the parser reads.
      const size_t near = random() % 3 == 0 ? random() % 1024 : random() % image.size();
      image[near] = static_cast<uint8_t>(random());
    }
    auto sites = parse_usdt_notes(image);
    if (!sites) {
      refused++;
      continue;
    }
    accepted++;
    for (const ProbeSite& site : *sites) {
      ASSERT_LT(site.offset, image.size());
#if defined(__x86_64__)
      ASSERT_EQ(image[site.offset], 0x90);
      if (site.has_nop5) {
        ASSERT_EQ(image[site.offset + 1], 0x0f);
      }
#endif
      ASSERT_LE(site.semaphore_offset + 2, image.size());
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace gpuprof::probe
