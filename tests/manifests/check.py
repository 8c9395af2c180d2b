# SPDX-License-Identifier: Apache-2.0
"""Reads every manifest of docker/ and every workflow by its schema, and applies the policies to pods. Run by
scripts/check-manifests, which has what is imported here.

usage: check.py SOURCE_TREE"""

import copy
import json
import pathlib
import sys
import tempfile

import check_jsonschema
import jsonschema
import kubernetes_validate
import yaml
from cloudcoil.models.kyverno import v1 as kyverno

import policies

FILE = "/opt/gpu-profiled/libgpu-profiled-cupti.so"
KUBERNETES = "1.37.0"


def documents(path):
    """YAML 1.1's `on` is true, and GitHub's a word."""
    found = [document for document in yaml.safe_load_all(path.read_text()) if document]
    return [{"on" if key is True else key: value for key, value in document.items()} for document in found]


def fault_of_kubernetes(document):
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        return str(error).splitlines()[0]
    return ""


def fields_lost(read, written):
    """A field of `read` that is not in `written`, or none."""
    if isinstance(read, dict):
        for key, value in read.items():
            if key not in written:
                return key
            if lost := fields_lost(value, written[key]):
                return f"{key}.{lost}"
    elif isinstance(read, list):
        for one, other in zip(read, written):
            if lost := fields_lost(one, other):
                return lost
    return ""


def fault_of_kyverno(document):
    """The models drop what they do not know."""
    try:
        model = kyverno.ClusterPolicy.model_validate(document)
    except ValueError as error:
        return str(error).splitlines()[0]
    written = json.loads(model.model_dump_json(by_alias=True, exclude_unset=True))
    lost = fields_lost(document, written)
    return f"unknown field {lost}" if lost else ""


def fault_of_cdi(document):
    schema = json.loads((pathlib.Path(__file__).parent / "cdi.schema.json").read_text())
    errors = list(jsonschema.Draft7Validator(schema).iter_errors(document))
    return errors[0].message if errors else ""


def fault_by_builtin(schema):
    def fault(document):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(document, file)
            file.flush()
            done = check_jsonschema.main(["--builtin-schema", schema, "--quiet", file.name], standalone_mode=False)
            return "" if not done else "not by its schema: check-jsonschema says more"
    return fault


def plan(tree):
    """(files, their check, a change of a document that the check must refuse)."""
    docker = tree / "docker"
    kubernetes = [path for path in sorted(docker.glob("kubernetes/*.yaml")) if path.name != "kyverno.yaml"]
    return [
        (kubernetes, fault_of_kubernetes, lambda d: d["metadata"].update(lables={})),
        ([docker / "kubernetes/kyverno.yaml"], fault_of_kyverno, lambda d: d["spec"]["rules"][0].update(mutat={})),
        (sorted(docker.glob("cdi/*.yaml")), fault_of_cdi, lambda d: d["devices"][0]["containerEdits"]["env"].append("NO VALUE")),
        ([docker / "compose.yaml"], fault_by_builtin("vendor.compose-spec"), lambda d: d["services"]["train"].update(imagee="x")),
        (sorted(tree.glob(".github/workflows/*.yml")), fault_by_builtin("vendor.github-workflows"),
         lambda d: next(iter(d["jobs"].values())).update({"runs-onn": "x"})),
    ]


def check_schemas(tree):
    found = []
    for files, fault_of, broken in plan(tree):
        for path in files:
            for document in documents(path):
                if fault := fault_of(document):
                    found.append(f"{path.relative_to(tree)}: {fault}")
                changed = copy.deepcopy(document)
                broken(changed)
                if not fault_of(changed):
                    found.append(f"{path.relative_to(tree)}: its check finds no fault where there is one")
                print(f"{path.relative_to(tree)}: {document.get('kind', 'file')}")
        if not files:
            found.append("a kind of manifest has no file")
    return found


def pods():
    """(pod, the same as the policies must leave it)."""
    gpu = {"limits": {"nvidia.com/gpu": 1}}
    env = {"name": "CUDA_INJECTION64_PATH", "value": FILE}
    mount = {"name": "gpu-profiled", "mountPath": FILE, "readOnly": True}
    volume = {"name": "gpu-profiled", "hostPath": {"path": FILE, "type": "File"}}
    other = {"name": "HOME", "value": "/root"}
    data = {"name": "data", "mountPath": "/data"}
    own = {"name": "CUDA_INJECTION64_PATH", "value": "/opt/nvbit.so"}

    def pod(*containers, **spec):
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": list(containers), **spec}}

    plain = {"name": "plain", "resources": gpu}
    rich = {"name": "rich", "resources": gpu, "env": [other], "volumeMounts": [data]}
    proxy = {"name": "proxy", "resources": {"limits": {"cpu": "1"}}}
    bare = {"name": "bare"}
    taken = {"name": "taken", "resources": gpu, "env": [own]}
    return [
        (pod(plain), pod({**plain, "env": [env], "volumeMounts": [mount]}, volumes=[volume])),
        (pod(rich, proxy, bare, volumes=[{"name": "data", "emptyDir": {}}]),
         pod({**rich, "env": [other, env], "volumeMounts": [data, mount]}, proxy, bare,
             volumes=[{"name": "data", "emptyDir": {}}, volume])),
        (pod(plain, taken), pod({**plain, "env": [env], "volumeMounts": [mount]}, taken, volumes=[volume])),
        (pod(taken), pod(taken)),
        (pod(bare, proxy), pod(bare, proxy)),
    ]


def namespaces():
    """(labels, whether pods there get the shim)."""
    enforce = "pod-security.kubernetes.io/enforce"
    inject = {"gpu-profiled": "inject"}
    return [(inject, True), ({}, False), ({"gpu-profiled": "no"}, False), ({**inject, enforce: "privileged"}, True),
            ({**inject, enforce: "baseline"}, False), ({**inject, enforce: "restricted"}, False)]


def check_policies(tree):
    folder = tree / "docker/kubernetes"
    admission = documents(folder / "mutating-admission-policy.yaml")[0]
    kyverno_policy = documents(folder / "kyverno.yaml")[0]
    found = []
    for number, (pod, wanted) in enumerate(pods(), 1):
        for name, result in (("mutating-admission-policy.yaml", policies.apply_admission(admission, pod)),
                             ("kyverno.yaml", policies.apply_kyverno(kyverno_policy, pod))):
            if result != wanted:
                found.append(f"{name}: pod {number} became {json.dumps(result)}, not {json.dumps(wanted)}")
            if fault := fault_of_kubernetes(result):
                found.append(f"{name}: pod {number} is refused: {fault}")
            again = policies.apply_admission(admission, result) if name.startswith("mut") else policies.apply_kyverno(kyverno_policy, result)
            if again != result:
                found.append(f"{name}: pod {number} changes when it is seen again")
    for labels, wanted in namespaces():
        for name, result in (("mutating-admission-policy.yaml", policies.admission_selects(admission, labels)),
                             ("kyverno.yaml", policies.kyverno_selects(kyverno_policy, labels))):
            if result != wanted:
                found.append(f"{name}: {'selects' if result else 'leaves'} a namespace labelled {json.dumps(labels)}")
    print(f"{len(pods())} pods and {len(namespaces())} namespaces through both policies")
    return found


def main():
    tree = pathlib.Path(sys.argv[1]).resolve()
    found = [*check_schemas(tree), *check_policies(tree)]
    print("\n".join(found) or "all manifests are by their schemas")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
