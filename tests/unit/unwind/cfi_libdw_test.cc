// SPDX-License-Identifier: Apache-2.0
// Every row of call frame information of real files, and of random valid programs: our rules are
// libdw's.
#include <dwarf.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "daemon/unwind/elf_file.h"
#include "tests/unit/unwind/elf_builder.h"
#include "tests/unit/unwind/libdw_rules.h"

namespace gpuprof::unwind {
namespace {

using test::Bytes;

struct Compared {
  size_t rows = 0;
  size_t present = 0;  // of them, with a rule
  size_t differences = 0;
};

// A new address may have no rule until questions have earned it (CfiTable::kCreditPerRule).
test::PlainRule patient_rule(CfiTable& table, uint64_t address, bool is_present) {
  test::PlainRule rule = test::plain(table, address);
  for (int again = 0; is_present && !rule.rule.present && again < 4096; ++again) {
    rule = test::plain(table, address);
  }
  return rule;
}

// At the first and the last address of every row that libdw has, and at every address between them
// that it has none for.
Compared compare(const Bytes& image, uint64_t from = 0, uint64_t to = ~uint64_t{0}) {
  auto file = ElfFile::from_memory(image);
  EXPECT_TRUE(file.has_value());
  Bytes copy = image;  // libdw decompresses sections in place
  Elf* const elf = elf_memory(reinterpret_cast<char*>(copy.data()), copy.size());
  Compared result;
  {
    test::LibdwRules libdw((*file)->machine(), elf);
    CfiTable& table = (*file)->cfi();
    auto same = [&](uint64_t address, const test::PlainRule& theirs) {
      const test::PlainRule ours = patient_rule(table, address, theirs.rule.present);
      if (ours == theirs) return;
      if (++result.differences <= 5) {
        ADD_FAILURE() << std::hex << address << "\n ours   " << to_string(ours) << "\n theirs "
                      << to_string(theirs);
      }
    };
    for (const ElfFile::Segment& segment : (*file)->segments()) {
      const uint64_t end = std::min(to, segment.address + segment.file_size);
      for (uint64_t address = std::max(from, segment.address); address < end;) {
        const auto row = libdw.row(address);
        same(address, row ? row->rule : test::PlainRule{});
        result.rows += row.has_value();
        result.present += row && row->rule.rule.present;
        const uint64_t next = row ? std::max(row->end, address + 1) : address + 1;
        if (next - 1 != address) same(next - 1, row->rule);
        address = next;
      }
    }
  }
  elf_end(elf);
  return result;
}

Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

size_t compare_file(const std::string& path) {
  SCOPED_TRACE(path);
  const Compared result = compare(read_file(path));
  EXPECT_EQ(result.differences, 0u);
  return result.rows;
}

// libc, libstdc++, libgcc, libm, ld.so, libelf, libdw and this program.
std::set<std::string> mapped_files() {
  std::set<std::string> paths;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos && line.find(" r-xp ") != std::string::npos) {
      paths.insert(line.substr(path));
    }
  }
  return paths;
}

TEST(CfiLibdw, MappedFilesHaveTheSameRules) {
  size_t rows = 0;
  for (const std::string& path : mapped_files()) rows += compare_file(path);
  EXPECT_GT(rows, 50'000u);
}

TEST(CfiLibdw, VdsoHasTheSameRules) {
  const uint64_t start = getauxval(AT_SYSINFO_EHDR);
  ASSERT_NE(start, 0u) << "this kernel maps no vdso: nothing to compare";
  Elf64_Ehdr header;
  std::memcpy(&header, reinterpret_cast<const void*>(start), sizeof header);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(start);
  const size_t size = header.e_shoff + size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  const Compared result = compare({bytes, bytes + size});
  EXPECT_EQ(result.differences, 0u);
  EXPECT_GT(result.rows, 10u);
}

// Linked without .eh_frame_hdr; with .debug_frame alone, as it is and compressed; without section
// headers.
TEST(CfiLibdw, OtherPlacesOfTheSameRules) {
  EXPECT_GT(compare_file(CFI_FIXTURES "/libunwind_chain_no_header.so"), 5u);
  EXPECT_GT(compare_file(CFI_FIXTURES "/libmany_frames_none.so"), 300u);
  EXPECT_GT(compare_file(CFI_FIXTURES "/libmany_frames_zlib.so"), 300u);
  Bytes image = read_file(CFI_FIXTURES "/libunwind_chain_a.so");
  auto* const header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  header->e_shoff = 0;
  header->e_shnum = header->e_shstrndx = 0;
  const Compared result = compare(image);
  EXPECT_EQ(result.differences, 0u);
  EXPECT_GT(result.rows, 5u);
}

// More files, for runs by hand: GPU_PROFILED_TEST_CFI_FILES="a.so b.so".
TEST(CfiLibdw, GivenFilesHaveTheSameRules) {
  const char* const given = std::getenv("GPU_PROFILED_TEST_CFI_FILES");
  std::istringstream paths(given != nullptr ? given : "/proc/self/exe");
  for (std::string path; paths >> path;) {
    const size_t rows = compare_file(path);
    std::printf("%9zu rows %s\n", rows, path.c_str());
  }
}

// Random instructions that are valid: every opcode, balanced states, expressions.
class RandomProgram {
 public:
  RandomProgram(uint16_t machine, uint64_t seed) : random_(seed), machine_(machine) {}

  Bytes cie() {
    Bytes out = {DW_CFA_def_cfa, machine_ == EM_X86_64 ? uint8_t{7} : uint8_t{31}};
    uleb(out, random_() % 200);
    for (int i = 0; i < 3; ++i) rule(out);
    return out;
  }

  Bytes fde(int steps) {
    Bytes out;
    int depth = 0;
    for (int i = 0; i < steps; ++i) {
      const auto kind = random_() % 10;
      if (kind < 3) {
        advance(out);
      } else if (kind < 5) {
        cfa(out);
      } else if (kind < 8) {
        rule(out);
      } else if (kind == 8) {
        restore(out);
      } else if (depth > 0 && random_() % 2 == 0) {
        out.push_back(DW_CFA_restore_state);
        --depth;
      } else if (depth < 5) {
        out.push_back(DW_CFA_remember_state);
        ++depth;
      }
    }
    return out;
  }

 private:
  static void uleb(Bytes& out, uint64_t v) {
    do {
      out.push_back(static_cast<uint8_t>((v & 0x7f) | (v > 0x7f ? 0x80 : 0)));
      v >>= 7;
    } while (v != 0);
  }
  static void sleb(Bytes& out, int64_t v) {
    for (bool more = true; more; v >>= 7) {
      more = v < -64 || v > 63;
      out.push_back(static_cast<uint8_t>((v & 0x7f) | (more ? 0x80 : 0)));
    }
  }
  int64_t offset() { return static_cast<int64_t>(random_() % 4096) - 2048; }
  uint64_t reg() { return random_() % (random_() % 8 == 0 ? 100 : 34); }

  void advance(Bytes& out) {
    const auto units = random_() % 40;
    switch (random_() % 4) {
      case 0:
        out.push_back(static_cast<uint8_t>(DW_CFA_advance_loc | units));
        break;
      case 1:
        out.insert(out.end(), {DW_CFA_advance_loc1, static_cast<uint8_t>(units)});
        break;
      case 2:
        out.push_back(DW_CFA_advance_loc2);
        test::put(out, units, 2);
        break;
      default:
        out.push_back(DW_CFA_advance_loc4);
        test::put(out, units, 4);
        break;
    }
  }

  void cfa(Bytes& out) {
    switch (random_() % 6) {
      case 0:
        out.push_back(DW_CFA_def_cfa);
        uleb(out, reg());
        uleb(out, random_() % 100'000);
        break;
      case 1:
        out.push_back(DW_CFA_def_cfa_sf);
        uleb(out, reg());
        sleb(out, offset());
        break;
      case 2:
        out.push_back(DW_CFA_def_cfa_register);
        uleb(out, reg());
        break;
      case 3:
        out.push_back(DW_CFA_def_cfa_offset);
        uleb(out, random_() % 100'000);
        break;
      case 4:
        out.push_back(DW_CFA_def_cfa_offset_sf);
        sleb(out, offset());
        break;
      default:
        out.push_back(DW_CFA_def_cfa_expression);
        block(out);
        break;
    }
  }

  void rule(Bytes& out) {
    // libdw takes rax for rbx in what the ABI preserves: these two get no rule that shows it.
    uint64_t r = reg();
    if (machine_ == EM_X86_64 && (r == 0 || r == 3)) r = 12;
    switch (random_() % 11) {
      case 0:
        out.push_back(DW_CFA_undefined);
        uleb(out, r);
        break;
      case 1:
        out.push_back(DW_CFA_same_value);
        uleb(out, r);
        break;
      case 2:
        out.push_back(static_cast<uint8_t>(DW_CFA_offset | (r & 31)));
        uleb(out, random_() % 1000);
        break;
      case 3:
      case 4: {
        static constexpr uint8_t kUnsigned[] = {DW_CFA_offset_extended, DW_CFA_val_offset,
                                                DW_CFA_GNU_negative_offset_extended};
        out.push_back(kUnsigned[random_() % 3]);
        uleb(out, r);
        uleb(out, random_() % 1000);
        break;
      }
      case 5:
      case 6:
        out.push_back(random_() % 2 ? DW_CFA_offset_extended_sf : DW_CFA_val_offset_sf);
        uleb(out, r);
        sleb(out, offset());
        break;
      case 7:
        out.push_back(DW_CFA_register);
        uleb(out, r);
        uleb(out, reg());
        break;
      case 8:
        out.push_back(DW_CFA_GNU_args_size);
        uleb(out, random_() % 1000);
        if (machine_ == EM_AARCH64) out.push_back(DW_CFA_AARCH64_negate_ra_state);
        break;
      default:
        out.push_back(random_() % 2 ? DW_CFA_expression : DW_CFA_val_expression);
        uleb(out, r);
        block(out);
        break;
    }
  }

  void restore(Bytes& out) {
    if (random_() % 2 == 0) {
      out.push_back(static_cast<uint8_t>(DW_CFA_restore | random_() % 34));
    } else {
      out.push_back(DW_CFA_restore_extended);
      uleb(out, reg());
    }
  }

  void operation(Bytes& out) {
    static constexpr uint8_t kPlain[] = {DW_OP_dup,  DW_OP_drop, DW_OP_over, DW_OP_swap, DW_OP_rot,
                                         DW_OP_abs,  DW_OP_and,  DW_OP_plus, DW_OP_shl,  DW_OP_xor,
                                         DW_OP_eq,   DW_OP_ge,   DW_OP_ne,   DW_OP_nop,  DW_OP_lit0,
                                         DW_OP_reg0, DW_OP_div,  DW_OP_mod,  DW_OP_deref};
    static constexpr std::pair<uint8_t, unsigned> kFixed[] = {
        {DW_OP_addr, 8},    {DW_OP_const1u, 1}, {DW_OP_const1s, 1},   {DW_OP_const2u, 2},
        {DW_OP_const2s, 2}, {DW_OP_const4u, 4}, {DW_OP_const4s, 4},   {DW_OP_const8u, 8},
        {DW_OP_const8s, 8}, {DW_OP_pick, 1},    {DW_OP_deref_size, 1}};
    switch (random_() % 5) {
      case 0:
        out.push_back(kPlain[random_() % std::size(kPlain)]);
        break;
      case 1: {
        const auto [atom, size] = kFixed[random_() % std::size(kFixed)];
        out.push_back(atom);
        test::put(out, random_(), size);
        break;
      }
      case 2:
        out.push_back(static_cast<uint8_t>(DW_OP_breg0 + random_() % 32));
        sleb(out, offset());
        break;
      case 3:
        out.push_back(random_() % 2 ? DW_OP_constu : DW_OP_plus_uconst);
        uleb(out, random_());
        break;
      default:
        out.push_back(DW_OP_bregx);
        uleb(out, reg());
        sleb(out, offset());
        break;
    }
  }

  // Some have a branch, forward over what follows it.
  void block(Bytes& out) {
    Bytes ops;
    operation(ops);
    for (auto more = random_() % 4; more > 0; --more) operation(ops);
    if (random_() % 3 == 0) {
      Bytes skipped;
      operation(skipped);
      ops.push_back(random_() % 2 ? DW_OP_bra : DW_OP_skip);
      test::put(ops, skipped.size(), 2);
      ops.insert(ops.end(), skipped.begin(), skipped.end());
    }
    uleb(out, ops.size());
    out.insert(out.end(), ops.begin(), ops.end());
  }

  std::mt19937_64 random_;
  uint16_t machine_;
};

TEST(CfiLibdw, RandomProgramsHaveTheSameRules) {
  size_t present = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const uint16_t machine = seed % 2 == 0 ? EM_X86_64 : EM_AARCH64;
    SCOPED_TRACE(seed);
    RandomProgram program(machine, seed);
    const Bytes cie = program.cie();
    const Bytes fde = program.fde(60);
    const auto alignment = static_cast<int8_t>(seed % 3 == 0 ? -8 : seed % 3 == 1 ? -4 : 4);
    const Compared result =
        compare(test::elf_file(machine, test::eh_frame(machine == EM_X86_64 ? 16 : 30, alignment,
                                                       cie, 0x1000, 0x300, fde)),
                0xff0, 0x1310);
    ASSERT_EQ(result.differences, 0u);
    present += result.present;
  }
  EXPECT_GT(present, 10'000u);
}

}  // namespace
}  // namespace gpuprof::unwind
