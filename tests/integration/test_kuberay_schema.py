"""Validate the RayJob against KubeRay's schema, as an API server does.

The schema (1 MB) is not part of the project. KUBERAY_CRD names the file
ray-operator/config/crd/bases/ray.io_rayjobs.yaml of github.com/ray-project/kuberay.
"""

import copy
import os
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.unit.orchestrator.cli.test_launch import CASES, written

CRD = os.environ.get("KUBERAY_CRD", "")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CRD, reason="KUBERAY_CRD names no file")]


def closed(schema):
    """Return the schema without unknown fields, which API servers drop and strict clients refuse."""
    if isinstance(schema, list):
        return [closed(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    of_fields = isinstance(made.get("properties"), dict) and made.get("type") == "object"
    if of_fields and "additionalProperties" not in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def validator():
    versions = yaml.load(Path(CRD).read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]["versions"]
    schema = next(version for version in versions if version["name"] == "v1")["schema"]["openAPIV3Schema"]
    schema = closed(schema)
    schema["properties"]["metadata"] = {"type": "object"}  # which is Kubernetes' own
    return Draft202012Validator(schema)


@pytest.mark.parametrize("more", [{}, {"gpus": 0}, {"memory_gb": 500}])
def test_the_rayjob_is_valid(validator, more):
    job = yaml.safe_load(written("kuberay", **CASES["kuberay"] | more))
    assert [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(job)] == []


def test_an_invalid_rayjob_is_found(validator):
    job = yaml.safe_load(written("kuberay", **CASES["kuberay"]))
    for path, key, value in ((("spec",), "entrypiont", "x"), (("spec", "rayClusterSpec"), "rayVersion", 2)):
        broken = copy.deepcopy(job)
        place = broken
        for step in path:
            place = place[step]
        place[key] = value
        assert list(validator.iter_errors(broken))
