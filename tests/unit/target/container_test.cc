// SPDX-License-Identifier: Apache-2.0
//
// The forms of cgroup paths in use, as the engines and systemd make them; ids and uids are made up.
#include "daemon/target/container.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "daemon/target/cgroup.h"

namespace gpuprof::target {
namespace {

#define ID "3f1c7a9b2d4e5f60718293a4b5c6d7e8f90123456789abcdef0123456789abcd"
#define OTHER_ID "a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566778899aabbccddeeff"
#define UID "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
#define UID_ "0b1c2d3e_4f50_6172_8394_a5b6c7d8e9f0"
#define HASH "9c8b7a6f5e4d3c2b1a0f9e8d7c6b5a4f"

struct Case {
  const char* what;
  const char* text;  // /proc/PID/cgroup
  const char* id;
  const char* pod_uid;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.what; }

constexpr Case kCases[] = {
    // Docker.
    {"docker, cgroupfs, v1", "12:pids:/docker/" ID "\n11:memory:/docker/" ID "\n0::/\n", ID, ""},
    {"docker, v1, no parent", "10:net_prio:/" ID "\n9:perf_event:/" ID "\n", ID, ""},
    {"docker, systemd, v2", "0::/system.slice/docker-" ID ".scope\n", ID, ""},
    {"docker, v1, the path of one hierarchy alone",
     "3:cpu,cpuacct:/\n2:memory:/docker/" ID "\n1:name=systemd:/init.scope\n", ID, ""},
    {"docker, parent of a CI job", "0::/actions_job/" ID "\n", ID, ""},
    {"docker, cgroups of its own",
     "0::/system.slice/docker-" ID ".scope/init/docker-" OTHER_ID ".scope\n", ID, ""},
    {"docker, rootless",
     "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" ID ".scope\n", ID, ""},
    {"docker in docker: the host's", "0::/docker/" ID "/docker/" OTHER_ID "\n", ID, ""},
    {"nerdctl",
     "0::/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-" ID ".scope\n", ID, ""},
    {"containerd's ctr, an id of its own", "0::/default/my-job\n", "", ""},
    // Kubernetes.
    {"containerd, cgroupfs, burstable", "11:cpuset:/kubepods/burstable/pod" UID "/" ID "\n", ID,
     UID},
    {"containerd, cgroupfs, guaranteed", "0::/kubepods/pod" UID "/" ID "\n", ID, UID},
    {"containerd, systemd, burstable",
     "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_
     ".slice/cri-containerd-" ID ".scope\n",
     ID, UID},
    {"containerd, systemd, guaranteed",
     "0::/kubepods.slice/kubepods-pod" UID_ ".slice/cri-containerd-" ID ".scope\n", ID, UID},
    {"containerd, systemd, v1 name=systemd",
     "1:name=systemd:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_
     ".slice/cri-containerd-" ID ".scope\n0::/system.slice/containerd.service\n",
     ID, UID},
    {"containerd, kubelet with systemd and it without",
     "11:devices:/system.slice/containerd.service/kubepods-besteffort-pod" UID_
     ".slice:cri-containerd:" ID "\n",
     ID, UID},
    {"static pod, cgroupfs", "4:memory:/kubepods/besteffort/pod" HASH "/" ID "\n", ID, HASH},
    {"static pod, systemd",
     "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" HASH
     ".slice/cri-containerd-" ID ".scope\n",
     ID, HASH},
    {"dockershim",
     "11:pids:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_
     ".slice/docker-" ID ".scope\n",
     ID, UID},
    {"CRI-O, systemd",
     "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" UID_ ".slice/crio-" ID
     ".scope\n",
     ID, UID},
    {"CRI-O with crun's own below",
     "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_ ".slice/crio-" ID
     ".scope/container\n",
     ID, UID},
    {"CRI-O, cgroupfs", "7:cpu:/kubepods/burstable/pod" UID "/crio-" ID "\n", ID, UID},
    {"CRI-O's monitor",
     "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" UID_
     ".slice/crio-conmon-" ID ".scope\n",
     "", UID},
    {"kind, systemd: the node is the host's",
     "0::/system.slice/docker-" ID
     ".scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
     "kubelet-kubepods-burstable-pod" UID_ ".slice/cri-containerd-" OTHER_ID ".scope\n",
     ID, ""},
    {"kind, seen from its node",
     "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" UID_
     ".slice/cri-containerd-" ID ".scope\n",
     ID, UID},
    // Out of a cgroup namespace.
    {"a container of our own pod", "0::/../cri-containerd-" ID ".scope\n", ID, ""},
    {"a container of our own pod, cgroupfs", "0::/../" ID "\n", ID, ""},
    {"a pod beside ours",
     "0::/../../kubepods-burstable-pod" UID_ ".slice/cri-containerd-" ID ".scope\n", ID, UID},
    {"a pod beside ours, cgroupfs", "0::/../../pod" UID "/" ID "\n", ID, UID},
    {"our own container", "0::/\n", "", ""},
    // Podman, systemd, LXC, others.
    {"podman", "0::/machine.slice/libpod-" ID ".scope\n", ID, ""},
    {"podman with crun's own below", "0::/machine.slice/libpod-" ID ".scope/container\n", ID, ""},
    {"podman, rootless",
     "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" ID ".scope\n", ID, ""},
    {"podman, cgroupfs", "9:pids:/libpod_parent/libpod-" ID "\n", ID, ""},
    {"podman, split", "0::/system.slice/train.service/libpod-payload-" ID "\n", ID, ""},
    {"podman, in a pod",
     "0::/machine.slice/machine-libpod_pod_" OTHER_ID ".slice/libpod-" ID ".scope\n", ID, ""},
    {"podman's monitor", "0::/machine.slice/libpod-conmon-" ID ".scope\n", "", ""},
    {"systemd-nspawn, booted",
     "0::/machine.slice/systemd-nspawn@bullseye.service/payload/system.slice/train.service\n",
     "bullseye", ""},
    {"systemd-nspawn by machinectl", "0::/machine.slice/machine-gpu\\x2dnode.scope/payload\n",
     "gpu-node", ""},
    {"LXC", "0::/lxc.payload.train1/system.slice/train.service\n", "train1", ""},
    {"LXC's monitor", "0::/lxc.monitor.train1\n", "", ""},
    {"ECS", "8:memory:/ecs/" HASH "/" ID "\n", ID, ""},
    {"Fargate", "8:memory:/ecs/" HASH "/" HASH "-2495560603\n", HASH "-2495560603", ""},
    {"a cgroup that was removed", "0::/docker/" ID " (deleted)\n", ID, ""},
    // None.
    {"a login", "0::/user.slice/user-1000.slice/session-3.scope\n", "", ""},
    {"a service", "1:name=systemd:/system.slice/train.service\n0::/system.slice/train.service\n",
     "", ""},
    {"Slurm", "0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n", "", ""},
    {"61 digits", "0::/docker/3f1c7a9b2d4e5f60718293a4b5c6d7e8f90123456789abcdef0123456789a\n", "",
     ""},
    {"capitals", "0::/docker/3F1C7A9B2D4E5F60718293A4B5C6D7E8F90123456789ABCDEF0123456789ABCD\n",
     "", ""},
    {"text around an id", "0::/x" ID "/" ID "y\n", "", ""},
    {"a pod's slice of no kubelet", "0::/my-pod" UID_ ".slice\n", "", ""},
    {"a uid with a digit that is none",
     "0::/kubepods/pod0b1c2d3e-4f50-6172-8394-a5b6c7d8e9fg/" ID "\n", ID, ""},
    {"dashes in the wrong places", "0::/kubepods/pod0b1c2d3e4-f50-6172-8394-a5b6c7d8e9f0/x\n", "",
     ""},
    {"a machine's name that is none", "0::/machine.slice/machine-a\\x0ab.scope\n", "", ""},
    {"a colon of others", "0::/kubepods-pod" UID_ ".slice:x:" ID "\n", "", ""},
    {"no path", "0::docker/" ID "\n", "", ""},
    {"no line of it", "/docker/" ID "\nx:memory:/docker/" ID "\n:::\n\n0:\n0::\n", "", ""},
    {"nothing", "", "", ""},
};

class ParseCgroup : public ::testing::TestWithParam<Case> {};

TEST_P(ParseCgroup, TellsContainerAndPod) {
  const Case& c = GetParam();
  const Container got = parse_cgroup(c.text);
  EXPECT_EQ(got.id, c.id);
  EXPECT_EQ(got.pod_uid, c.pod_uid);
}

INSTANTIATE_TEST_SUITE_P(Forms, ParseCgroup, ::testing::ValuesIn(kCases));

TEST(ParseCgroupBounds, LooksAtSoMuchAndNoMore) {
  const std::string line = "0::/docker/" ID "\n";
  std::string filled(kMostCgroupBytes - line.size(), 'x');
  filled.back() = '\n';
  EXPECT_EQ(parse_cgroup(filled + line).id, ID);
  EXPECT_EQ(parse_cgroup("\n" + filled + line).id, ID) << "the last newline is not needed";
  EXPECT_EQ(parse_cgroup("\n\n" + filled + line).id, "");
  EXPECT_EQ(parse_cgroup(std::string(1u << 20, '/')), Container());
  EXPECT_EQ(parse_cgroup("0::/" + std::string(1u << 20, '-')), Container());
}

TEST(ParseCgroupBounds, MachineNamesEndAtSixtyFour) {
  const std::string name(64, 'n');
  EXPECT_EQ(parse_cgroup("0::/lxc.payload." + name).id, name);
  EXPECT_EQ(parse_cgroup("0::/lxc.payload." + name + "n").id, "");
}

}  // namespace
}  // namespace gpuprof::target
