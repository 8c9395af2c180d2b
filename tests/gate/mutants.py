# SPDX-License-Identifier: Apache-2.0
"""Faults that scripts/mutate plants, one at a time: each must be found by the tests it names.

`old` occurs exactly once in `file`. `by` is a test program and a GoogleTest filter, or ("Gate11", "e2e"): an assertion's
end-to-end half, for what only the whole shows."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    by: tuple

    @property
    def target(self):
        """What must be built."""
        return self.by[0] if not self.by[0].startswith("Gate") else "all"


JOIN, CUBIN = "join_test", "cubin_image_test"

MUTANTS = (
    # 1 to 4: frames, lines, statuses
    Mutant("an extra frame under each kernel", "daemon/cubin/image.cc",
           "  impl_->add_chain_at(text, offset, at, name, resolution.frames);\n",
           "  impl_->add_chain_at(text, offset, at, name, resolution.frames);\n"
           "  resolution.frames.insert(resolution.frames.begin(), resolution.frames.front());\n",
           (JOIN, "AssembleDeviceCode.InlinedFunctionsNestUnderTheirKernel")),
    Mutant("a PC past the function's end takes the last line", "daemon/cubin/image.cc",
           "  if (pc_offset >= named.size_bytes) return resolution;\n",
           "  if (pc_offset >= named.size_bytes) pc_offset = named.size_bytes - 1;\n", ("gate_test", "Gate04.*")),
    Mutant("no line info is called resolved", "daemon/cubin/image.cc",
           "    return frame.line != 0 && !frame.file.empty();\n", "    return frame.line != 0 || frame.file.empty();\n",
           (CUBIN, "Image.WithoutLineInfoTheFunctionIsKnown")),
    Mutant("an id in a frame's name", "daemon/join/model_builder.cc", '"[memset]"', '"[memset 7]"',
           (JOIN, "Assemble.GraphCopiesAndUnmatchedRows")),
    Mutant("not-issued counts as a sample of its own", "daemon/join/pc_accounting.cc",
           "    kind = StallKind::kNotIssued;\n", "    kind = StallKind::kStalled;\n", (JOIN, "PcJoin.CountersAreToldApartByName")),
    Mutant("a swapped stall index", "daemon/join/pc_attribution.cc",
           "    return std::string(device_->stall_name(process, source.device_id, stall_index));\n",
           "    return std::string(device_->stall_name(process, source.device_id, stall_index ^ 1));\n",
           (JOIN, "PcJoin.CountersAreToldApartByName")),
    Mutant("pprof addresses of two modules overlap", "daemon/pprof/address_plan.cc",
           "    next = range.limit + kPage;\n", "    next = range.start + kPage;\n", ("pprof_test", "Writer.*")),
    # 5 to 7: accounts
    Mutant("a lost eviction counter", "daemon/join/joiner.cc", "      ++refused_.window.evicted;\n", "",
           (JOIN, "JoinerBounds.ProcessesBeyondTheLimitAreEvictedAndCounted")),
    Mutant("pending is never taken back", "daemon/join/pc_attribution.cc", "    pc.pending -= count;\n", "",
           (JOIN, "PcJoin.CountersAreToldApartByName")),
    Mutant("a drop class that is an execution is missing", "daemon/join/accounting.cc",
           "    case GPUPROF_DROP_INCOMPLETE:\n", "", (JOIN, "Accounting.OnlyExecutionLossesCount")),
    Mutant("a batch of the same executions is counted twice", "daemon/join/joiner.cc",
           "    p.window.duplicates += execs.size();\n    return;\n", "    p.window.duplicates += execs.size();\n",
           (JOIN, "Joiner.RepeatedExecutionIsCountedNotJoined")),
    Mutant("a graph's correlation is exact", "daemon/join/pc_joiner.cc",
           "  if ((execution != nullptr && execution->is_shared) || (launch != nullptr && launch->is_graph)) {\n",
           "  if (execution != nullptr && execution->is_shared) {\n", (JOIN, "PcJoin.AGraphs*")),
    Mutant("the epoch is no part of a correlation", "daemon/join/launch_cache.h",
           "return uint64_t{epoch} << 32 | correlation;", "return uint64_t{epoch} * 0 | correlation;",
           (JOIN, "Joiner.EpochTellsAWrappedCorrelationApart")),
    Mutant("shares are rounded down", "daemon/join/spread.cc", "  const uint64_t left = total - given;",
           "  const uint64_t left = 0 * (total - given);", (JOIN, "Apportion.*")),
    Mutant("weights below one", "daemon/join/spread.cc",
           "  residual_q16 = std::min(residual_q16 + (weight - kOneQ16), kMax);\n",
           "  residual_q16 = std::min(residual_q16 + weight, kMax);\n", (JOIN, "WeightSum.*")),
    # 8: windows
    Mutant("a context without windows is called false", "daemon/join/sampling_windows.cc",
           "  if (track == tracks_.end()) return Serialized::kUnknown;\n",
           "  if (track == tracks_.end()) return Serialized::kFalse;\n", ("gate_test", "Gate08.*")),
    Mutant("a lost window record is no doubt", "daemon/join/sampling_windows.cc",
           "  for (Track& track : tracks_) track.is_unknown = true;\n", "", ("gate_test", "Gate08.*")),
    Mutant("a window's first moment is outside", "daemon/join/sampling_windows.cc",
           "  if (track->is_open && start_ns >= track->open_ns)\n", "  if (track->is_open && start_ns > track->open_ns)\n",
           (JOIN, "SamplingWindows.SerializedFromOpenToClose")),
    # 9: labels
    Mutant("a suppressed label is not counted", "daemon/join/labels.cc", "    ++dropped_;\n    return;\n", "    return;\n",
           (JOIN, "Assemble.LabelValuesAreBoundedAndSamplesMerged")),
    Mutant("one value more than the cap", "daemon/join/labels.cc", "values.size() >= options_.max_label_values",
           "values.size() > options_.max_label_values", (JOIN, "Assemble.LabelValuesAreBoundedAndSamplesMerged")),
    # 10: modules and memfds
    Mutant("the hash of an image is not checked", "daemon/target/module_reader.cc",
           "  return XXH3_64bits_digest(hash.get()) == key ? ModuleFailure::kNone\n"
           "                                               : ModuleFailure::kHashMismatch;\n",
           "  return key != 0 ? ModuleFailure::kNone : ModuleFailure::kHashMismatch;\n",
           ("target_test", "ModuleReaderTest.WrongBytesAreNeverHandedOut")),
    Mutant("a copy may lie beyond its file", "daemon/target/module_reader.cc",
           "        entry.size_bytes > file_bytes - entry.copy_offset)\n", "        entry.size_bytes > file_bytes)\n",
           ("target_test", "ModuleReaderTest.ImpossibleSizesAndPlaces")),
    Mutant("images of any size", "daemon/target/module_reader.cc",
           "  if (entry.size_bytes > limits_.max_image_bytes) return ModuleFailure::kTooLarge;\n", "",
           ("target_test", "ModuleReaderTest.Limits")),
    Mutant("a budget of modules sized like that of all processes", "daemon/cli/device_modules.cc",
           "  if (bytes == 0 || bytes > kEarlyBytes - process.early_bytes ||\n",
           "  if (bytes == 0 || bytes > kEarlyBytesInAll - process.early_bytes ||\n",
           ("cli_test", "DeviceModules*")),
    Mutant("a memfd without its seal", "daemon/target/shim_channel.cc",
           "  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)\n", "  if (seals < 0)\n",
           ("target_test", "ShimChannel.RefusesWrongSeals")),
    Mutant("a file with a name is a memfd", "daemon/target/shim_channel.cc", "  if (info.st_nlink != 0) return",
           "  if (info.st_nlink > 9) return", ("target_test", "DisguisedFile.*")),
    Mutant("another process's page", "daemon/target/shim_channel.cc",
           "  if (page.owner_pid != innermost.value_or(process.pid))\n", "  if (page.owner_pid == 0)\n",
           ("target_test", "ShimChannel.RefusesBadContent")),
    # 11: rights
    Mutant("CAP_SYS_ADMIN is kept", "daemon/cli/capabilities.cc",
           "                     (perf_uprobes || !permits(before, CAP_BPF) || !permits(before, CAP_PERFMON));\n",
           "                     (!perf_uprobes || !permits(before, CAP_BPF));\n", ("Gate11", "e2e")),
    # 12: records
    Mutant("an off-by-one batch count", "daemon/probe/deliver.cc",
           "  std::span records(reinterpret_cast<const Record*>(bytes.data()), header.count);\n",
           "  std::span records(reinterpret_cast<const Record*>(bytes.data()), header.count - 1);\n",
           ("probe_test", "DecoderTest.*")),
    Mutant("a gap is one record", "daemon/probe/stream.cc", "  const uint64_t missing = resume - next_;\n",
           "  const uint64_t missing = resume == next_ ? 0 : 1;\n", ("probe_test", "Stream.AGapCountsRecordsNotBatches")),
    Mutant("probes of a newer ABI are not counted", "daemon/probe/usdt_notes.cc", "      ++unknown_;\n", "",
           ("probe_test", "UsdtNotes.OtherProvidersAndNewerProbesAreSkipped")),
    Mutant("a drop class without a name", "daemon/cli/report_parts.cc", '    "clock_step",      "hw_buffer_full",',
           '    "hw_buffer_full",', ("Gate12", "e2e")),
    Mutant("what is invalid is delivered", "daemon/probe/deliver.cc",
           "  const auto valid = [](const Record& record) { return is_valid(record); };\n",
           "  const auto valid = [](const Record&) { return true; };\n",
           ("probe_test", "DecoderTest.InvalidRecordsAreTakenOutAndCounted")),
    # the shim
    Mutant("a lease is ignored", "shim/core/lease.cc", "now_ns >= deadline_ns_", "now_ns >= ~deadline_ns_ * 0 + ~0ull",
           ("shim_core_knobs_test", "Lease.*")),
    Mutant("the last record of a batch stays", "shim/core/exec_batch.cc",
           "  if (count_ != 0) emit(GPUPROF_PROBE_EXEC, records_, count_);\n",
           "  if (count_ > 1) emit(GPUPROF_PROBE_EXEC, records_, count_);\n", ("shim_core_probes_test", "Probes.ExecBatch*")),
    Mutant("a full module table is not counted", "shim/core/module_table.cc",
           "  if (index >= GPUPROF_MODULE_CAPACITY) {\n    count_drop(GPUPROF_DROP_MODULE_TABLE_FULL);\n",
           "  if (index >= GPUPROF_MODULE_CAPACITY) {\n", ("shim_core_memfd_test", "Memfd.ZTableFills*")),
    Mutant("drops are told once", "shim/core/drops.cc", "    if (totals[i] != (final ? 0 : told[i])) records.add(i, 0, totals[i]);\n",
           "    if (told[i] == 0 && totals[i] != 0) records.add(i, 0, totals[i]);\n", ("shim_core_probes_test", "Probes.Drops*")),
    Mutant("the correlation widens upward only", "shim/core/correlation.cc",
           "  const auto distance = static_cast<int32_t>(id - static_cast<uint32_t>(recent));\n",
           "  const auto distance = static_cast<int64_t>(id - static_cast<uint32_t>(recent));\n",
           ("shim_core_time_test", "Correlation.*")),
)
