# SPDX-License-Identifier: Apache-2.0
"""What the two policies of docker/kubernetes do to a pod: their expressions are evaluated as they are written, in
CEL and JMESPath, and the result is merged into the pod as the API server merges lists."""

import copy
import json
import re

import celpy
import jmespath

# What tells the items of a list apart (the API's x-kubernetes-list-map-keys and patchMergeKey).
KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}


def merged(old, new, field=None):
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: merged(old.get(key), new[key], key) if key in new else old[key] for key in [*old, *(k for k in new if k not in old)]}
    if isinstance(old, list) and isinstance(new, list):
        key = KEYS[field]
        by_key = {item[key]: item for item in old}
        for item in new:
            by_key[item[key]] = merged(by_key.get(item[key]), item)
        return list(by_key.values())
    return copy.deepcopy(new)


def cel(expression, pod):
    """The value of an expression over `object`. Typed objects are maps here: their fields become strings."""
    expression = re.sub(r"\bObject(\.\w+)*\{", "{", expression)
    expression = re.sub(r"([{,]\s*)(\w+)\s*:", r'\1"\2":', expression)
    environment = celpy.Environment()
    value = environment.program(environment.compile(expression)).evaluate({"object": celpy.json_to_cel(pod)})
    return json.loads(json.dumps(value, cls=celpy.CELJSONEncoder))


def selects(selector, labels):
    """A label selector of the API. An operator that the two policies do not use is an error."""
    for one in selector.get("matchExpressions", []):
        if one["operator"] != "NotIn":
            raise ValueError(f"operator {one['operator']}")
        if labels.get(one["key"]) in one["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def admission_selects(policy, labels):
    """Whether the policy is asked about pods of a namespace with these labels."""
    return selects(policy["spec"]["matchConstraints"]["namespaceSelector"], labels)


def kyverno_selects(policy, labels):
    return any(selects(each["resources"]["namespaceSelector"], labels)
               for rule in policy["spec"]["rules"] for each in rule["match"]["any"])


def apply_admission(policy, pod):
    spec = policy["spec"]
    if not all(cel(condition["expression"], pod) for condition in spec["matchConditions"]):
        return pod
    for mutation in spec["mutations"]:
        pod = merged(pod, cel(mutation["applyConfiguration"]["expression"], pod))
    return pod


def substituted(value, element):
    """Kyverno's {{ element.x }} in a patch; an anchor (name) selects by name, as merging by name does."""
    if isinstance(value, dict):
        return {key.strip("()"): substituted(item, element) for key, item in value.items()}
    if isinstance(value, list):
        return [substituted(item, element) for item in value]
    if isinstance(value, str):
        return re.sub(r"\{\{ *element\.([\w.]+) *\}\}", lambda found: jmespath.search(found.group(1), element), value)
    return value


def apply_kyverno(policy, pod):
    for rule in policy["spec"]["rules"]:
        for each in rule["mutate"]["foreach"]:
            for element in jmespath.search(each["list"], {"request": {"object": pod}}) or []:
                pod = merged(pod, substituted(each["patchStrategicMerge"], element))
    return pod
