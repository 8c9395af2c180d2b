# SPDX-License-Identifier: Apache-2.0
"""The gate: sixteen numbered assertions, all of them in this file.

1 to 12 have two halves. `unit` needs no privilege: GoogleTest cases by binary, each of which must run and pass.
`end_to_end` is a function of a module beside this one: the real shim, real eBPF and the shipped gpu-profiled on the
fake CUDA, as root. 13 to 16 need an NVIDIA GPU: parts of scripts/hardware-check (`hardware`), results of which must be
met (`rows`, texts that their names contain).

gate_test.py checks that no number is missing, that each has its halves, and that every case named here exists."""
import dataclasses

ROOT_HALVES = range(1, 13)
GPU_ONLY = range(13, 17)


@dataclasses.dataclass(frozen=True)
class Assertion:
    number: int
    sentence: str
    unit: dict = dataclasses.field(default_factory=dict)  # test binary -> GoogleTest filters
    end_to_end: str = ""  # "module.function" of tests/gate
    hardware: tuple = ()  # sections of scripts/hardware-check
    rows: tuple = ()

    @property
    def name(self):
        return f"Gate{self.number:02}"


ASSERTIONS = (
    Assertion(
        1, "A sample's frames are its CPU stack, then [cuda graph] if any, then the kernel, then the functions really "
        "inlined at the PC; no frame name holds a PC, a stall, a status, an attribution or an id; at function "
        "granularity the kernel is one.",
        {"join_test": ("Assemble.NoFrameNameHoldsAnAddressOrAnId", "Assemble.GraphCopiesAndUnmatchedRows",
                       "AssembleDeviceCode.InlinedFunctionsNestUnderTheirKernel",
                       "AssembleDeviceCode.ANotInlinedFunctionIsUnderItsKernelToo"),
         "pprof_test": ("GoPprofDevice.TopNestsInlinedDeviceFunctionsUnderTheirKernel",
                        "GoPprofCalls.TimeIsConservedAndTheKernelsAreOneFrameEach")},
        "frames.gate01"),
    Assertion(
        2, "One sample has both a real CPU stack to main and a device source line that exists in the fixture's source.",
        {"join_test": ("AssembleDeviceCode.InlinedFunctionsNestUnderTheirKernel",
                       "AssembleDeviceCode.TritonKernelsResolveToPython"),
         "cubin_oracle_test": ("Oracles.EveryInstructionHasTheirLinesAndChains",)},
        "frames.gate02"),
    Assertion(
        3, "Without line info: no-lineinfo, no file, no line; resolvable and unresolvable samples of one launch path "
        "share stack and kernel frame, so that a partly -lineinfo build does not split in two.",
        {"join_test": ("AssembleDeviceCode.TheKernelsFrameIsOneWithAndWithoutLines",),
         "cubin_image_test": ("Image.WithoutLineInfoTheFunctionIsKnown",),
         "pprof_test": ("GoPprofCalls.OnlyWhatHasALineIsResolved",)},
        "frames.gate03"),
    Assertion(
        4, "All four values of gpu_src_status are reached, each from the right fixture; the enum is exhaustive and its "
        "zero is invalid; a PC past a function's end never takes a neighbour's line.",
        {"join_test": ("AssembleDeviceCode.EveryStatusIsSaid",),
         "cubin_image_test": ("Image.BeyondTheEndAndUnknownFunctionsAreUnmapped", "LineTable.RowsEndWithTheirFunction"),
         "cubin_malformed_test": ("LineTable.LinesAreNotTakenFromBetweenSequences",),
         "gate_test": ("Gate04.*",)},
        "frames.gate04"),
    Assertion(
        5, "Every PC record is in exactly one of attributed exactly, by kernel, pending, evicted, unattributed; the sums "
        "are what the producer emitted, by process and in total.",
        {"join_test": ("PcProperty.*", "PcJoin.RecordsLostAndRefusedAreCounted", "PcJoin.NoExecutionIsUnattributedNotLost",
                       "Accounting.NamesTheBrokenIdentity"),
         "cli_test": ("PcReport.JsonTellsEveryBucket", "PcReport.TheTotalIsTheSum")},
        "accounts.gate05"),
    Assertion(
        6, "10,000 continuous samples over 50 pairs of cubin and function: none lost to an eviction by correlation.",
        {"gate_test": ("Gate06.*",), "join_test": ("PcBounds.FewSamplesNeedLittleRoom",)},
        "accounts.gate06"),
    Assertion(
        7, "Two executions of one kernel from two stacks and one batch: kernel-ambiguous, shares by GPU time, totals "
        "conserved.",
        {"join_test": ("PcJoin.SeveralCallPathsShareByGpuTime", "PcJoin.AnotherContextOfTheDeviceIsAnEstimate",
                       "Apportion.SumIsExactAndEveryShareWithinOne")},
        "accounts.gate07"),
    Assertion(
        8, "Serialized windows: inside true, in a proven gap false, without window information unknown, never false by "
        "default; after a hard exit unknown.",
        {"join_test": ("SamplingWindows.*", "PcJoin.MixedWindowsLabelTheirExecutions"),
         "gate_test": ("Gate08.*",),
         "cupti_pc_serialized_test": ("CuptiPcSerialized.WindowsWithCorrelations",)},
        "serialized_windows.gate08"),
    Assertion(
        9, "Caps on the values of a label suppress that label alone; suppressions are counted and shown.",
        {"join_test": ("Assemble.LabelValuesAreBoundedAndSamplesMerged", "PcBounds.StallsBeyondTheLabelsLimitLoseTheirLabelOnly")},
        "accounts.gate09"),
    Assertion(
        10, "A flood of modules throttles modules alone, within the daemon's bound of memory. 10a: forged memfds, "
        "pointers, sizes, hashes and colliding images are refused and counted. 10b: a graph refuses serialized sampling "
        "at the start and mid-run; two devices with one cubin are told apart, or marked.",
        {"target_test": ("ShimChannel.RefusesWrongSeals", "ShimChannel.RefusesBadContent",
                         "ShimChannel.RefusesOtherKindsOfFile", "DisguisedFile.*", "ModuleReaderTest.WrongBytesAreNeverHandedOut",
                         "ModuleReaderTest.ImpossibleSizesAndPlaces", "ModuleReaderTest.AClaimBeyondTheTableAndAFileThatEndsInIt",
                         "ModuleReaderTest.ATableFullOfOneHashCostsEightTries",
                         "ModuleReaderTest.AnImageThatChangesWhileItIsReadIsNotHandedOut",
                         "ModuleReaderTest.ATableThatChangesWhileItIsRead"),
         "cli_test": ("DeviceModulesRoom.AFloodOfModulesCostsAQuietProcessNothing",
                      "DeviceModulesTest.EachProcessHasWhatWasReadFromItself", "DeviceModulesTest.EveryReasonIsTold",
                      "DeviceModulesTest.EarlyReadingHasABudget"),
         "cupti_pc_serialized_test": ("CuptiPcSerialized.RefusedAtStartWhereAGraphRan",),
         "join_test": ("PcJoin.AGraphsCorrelationIsNeverExact", "PcJoin.AnotherDeviceIsSaid")},
        "modules.gate10"),
    Assertion(
        11, "Without CAP_SYS_ADMIN where the kernel has uprobe_multi: capabilities read back after the start, a user with "
        "file capabilities against a third user's process, the README's setcap line.",
        {"cli_test": ("Capabilities.NothingComesBack",), "probe_test": ("BpfAccess.ACapabilityComesFirst",)},
        "rights.gate11"),
    Assertion(
        12, "Every probe and drop class that the shim can emit is decoded and consumed: undecoded 0, unconsumed 0; a "
        "record version that is not known is counted and skipped.",
        {"proto_abi_test": ("ProtoAbi.*",),
         "probe_test": ("UsdtNotes.FindsEverySiteOfTheShim", "UsdtNotes.OtherProvidersAndNewerProbesAreSkipped",
                        "DecoderTest.RefusesMalformedEntries", "DecoderTest.InvalidRecordsAreTakenOutAndCounted"),
         "shim_core_probes_test": ("Probes.DropsAreEmittedWhenTheyChangedAndAllOfThemAtTheEnd",),
         "cli_test": ("ReportParts.EveryCounterOfTheBpfProgramsIsInTheSummary",
                      "ReportParts.EveryCounterOfTheJoinIsInTheSummary")},
        "records.gate12"),
    Assertion(
        13, "The hash of the image that the daemon read is the key in the PC records, for every record.",
        hardware=("pc:hot_loops, continuous", "pc:w2, continuous"), rows=("images that have the hash which their PC records have",)),
    Assertion(
        14, "Continuous: a profile leads from a CPU stack to a real line of a CUDA source, through go tool pprof -list.",
        hardware=("pc:hot_loops, continuous",), rows=("hottest where it loops", "inline chain", "lines lie in their files")),
    Assertion(
        15, "Serialized: at least 99 % of the samples have a correlation, all exact, and windows bracket their executions.",
        hardware=("pc:hot_loops, serialized",), rows=("attribution of PC samples", "windows", "gpu_time by gpu_serialized")),
    Assertion(
        16, "The cost is within the thresholds, on fixed work, at least five interleaved runs, by arms: off, trace, "
        "continuous, serialized.",
        hardware=("cost", "pccost"), rows=("cost: runs", "pccost: runs", "")),  # and every other row of theirs
)
