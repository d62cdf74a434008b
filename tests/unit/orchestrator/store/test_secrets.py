import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.store.secrets import NO_SECRETS, Secrets, is_secret_name

RAW = {
    "a": "${oc.env:HF_TOKEN}",
    "b": "x-${oc.env:HF_TOKEN}-y",
    "n": "${oc.decode:${oc.env:N}}",
    "pin": "${oc.decode:${oc.env:PIN_TOKEN}}",
    "where": "${oc.env:PLACE}",
}
ENVIRONMENT = {"HF_TOKEN": "s3cr3t-value", "N": "12", "PIN_TOKEN": "4711", "PLACE": "/mnt/store"}
RESOLVED = {
    "a": "s3cr3t-value",
    "b": "x-s3cr3t-value-y",
    "n": 12,
    "pin": 4711,
    "where": "/mnt/store",
    "again": "/mnt/store/x",
}
SECRETS = Secrets.of(RAW, RESOLVED, ENVIRONMENT)


def test_values_of_the_environment_are_hidden_everywhere():
    hidden = SECRETS.value(RESOLVED)
    assert hidden["a"] == "<hidden HF_TOKEN>" and hidden["b"] == "x-<hidden HF_TOKEN>-y"
    assert hidden["pin"] == "<hidden PIN_TOKEN>" and hidden["where"].startswith("<PLACE ")
    assert hidden["again"] == hidden["where"] + "/x"
    assert (
        SECRETS.text("failed with s3cr3t-value in /mnt/store") == f"failed with <hidden HF_TOKEN> in {hidden['where']}"
    )


def test_number_is_hidden_only_if_its_name_is_a_secrets():
    record = {"device_batch_size": 12, "pin": 4711, "id": "a2026b4711", "lr": 1e-05}
    numbers = Secrets.of(
        RAW | {"y": "${oc.env:YEAR} ${oc.env:LR}"}, RESOLVED, ENVIRONMENT | {"YEAR": "2026", "LR": "1e-05"}
    )
    assert numbers.value(record) == record | {"pin": "<hidden PIN_TOKEN>", "id": "a2026b<hidden PIN_TOKEN>"}


@pytest.mark.parametrize("name", ["DB_PASS", "LOGIN"])
@pytest.mark.parametrize("text", ["--pw={}", "u={};", "login {} failed", "no {}.", "a-{}-b"])
def test_long_number_of_the_environment_is_hidden_in_texts(name, text):
    secrets = Secrets.of({"x": f"${{oc.env:{name}}}"}, {}, {name: "48291375"})
    assert secrets.text(text.format(48291375)) == text.format(secrets.hidden["48291375"])


def test_long_number_that_is_no_whole_word_or_no_text_stays():
    secrets = Secrets.of({"x": "${oc.env:BATCH} ${oc.env:STEPS}"}, {}, {"BATCH": "131072", "STEPS": "12345"})
    record = {
        "device_batch_size": 131072,
        "id": "ab131072",
        "lr": "0.131072",
        "label": "2×131072 linear",
        "n": "of 12345",
    }
    assert secrets.value(record) == record


def test_names_are_hidden_only_if_they_contain_a_named_secret():
    secrets = Secrets({"accuracy": "<METRIC 5879092f>", "hunter22": "<hidden DB_PASSWORD>"})
    assert secrets.value({"val_accuracy": 0.9, "of_hunter22": 1}) == {"val_accuracy": 0.9, "of_<hidden DB_PASSWORD>": 1}


def test_hidden_values_differ_unless_they_are_secrets():
    other = Secrets.of(RAW, RESOLVED | {"where": "/mnt/other"}, ENVIRONMENT | {"PLACE": "/mnt/other"})
    assert other.value("/mnt/other") != SECRETS.value("/mnt/store")
    other = Secrets.of(RAW, RESOLVED | {"a": "different"}, ENVIRONMENT | {"HF_TOKEN": "different"})
    assert other.value("different") == SECRETS.value("s3cr3t-value")


@pytest.mark.parametrize(
    "name", "token HF_TOKEN api_key wandb.apikey db-password client_secret auth DB_PASS db.pwd pin passphrase".split()
)
def test_values_under_secret_names_are_hidden(name):
    assert is_secret_name(name)
    assert NO_SECRETS.value({name: "anything at all"}) == {name: "<hidden>"}


@pytest.mark.parametrize(
    "name", "max_tokens tokenizer author authentic secretary key keys lr PWD pin_memory bypass pass_s".split()
)
def test_values_under_other_names_are_kept(name):
    assert not is_secret_name(name)
    assert NO_SECRETS.value({name: "anything at all"}) == {name: "anything at all"}


def test_value_of_a_secret_name_is_hidden_in_texts():
    secrets = Secrets.of({}, {"tracker": {"api_key": "abcd-efgh"}}, {})
    assert secrets.text("POST with abcd-efgh") == "POST with <hidden>"
    assert secrets.value({"token": 5, "tokens": True}) == {"token": 5, "tokens": True}


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "a1B2" * 9,
        "hf_" + "abcdEFGH12" * 3,
        "sk-proj-" + "abcdEFGH12" * 3,
        "xoxb-123456789012-abcdef",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijk",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nxyz\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_texts_that_look_like_secrets_are_hidden(secret):
    assert secret not in NO_SECRETS.text(f"ValueError: {secret} was refused")


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("mlflow at https://me:pass@host/x", "mlflow at https://<hidden>@host/x"),
        ("password=hunter22 user=me", "password=<hidden> user=me"),
        ("{'api_key': 'abcdefg'}", "{'api_key': '<hidden>'}"),
        ("tokens: 4096, token: 12", "tokens: 4096, token: 12"),
        ("db --pass=hunter22 {'pwd': 'hunter22'}", "db --pass=<hidden> {'pwd': '<hidden>'}"),
        ("first pass: compiled, PWD=/home, bypass=true", "first pass: compiled, PWD=/home, bypass=true"),
        ("trainable.token=${oc.env:T}", "trainable.token=${oc.env:T}"),
    ],
)
def test_texts_lose_secrets_and_nothing_else(text, clean):
    assert NO_SECRETS.text(text) == clean


@pytest.mark.parametrize(
    ("override", "clean"),
    [
        ("+tracker.api_key=ab c", "+tracker.api_key=<hidden>"),
        ("db.PASSWORD=hunter2", "db.PASSWORD=<hidden>"),
        ("my.secret_name=a,b", "my.secret_name=<hidden>"),
        ("trainable.token=${oc.env:T}", "trainable.token=${oc.env:T}"),
        ("trainable.lr=0.1", "trainable.lr=0.1"),
    ],
)
def test_whole_value_of_a_secret_override_is_hidden(override, clean):
    assert NO_SECRETS.value([override, clean]) == [clean, clean]


@given(st.text(min_size=4, max_size=30), st.text(max_size=40), st.text(max_size=40))
def test_hidden_value_never_appears(value, before, after):
    secrets = Secrets({value: "<hidden>"})
    if value not in "<hidden>" and value not in before + "<hidden>" + after:
        assert value not in secrets.text(before + value + after)


def test_secret_inside_another_secret_is_hidden():
    secrets = Secrets({"open": "<short>", "open-sesame": "<long>"})
    assert secrets.text("open-sesame, open") == "<long>, <short>"


UNITS = (
    *(
        "a.",
        "token ",
        "token=",
        "pass ",
        "pass=",
        "eyJ-",
        "eyJaaaaaaaaaaaa.",
        "-----BEGIN PRIVATE KEY-----",
        "-----END ",
        "://a:",
    ),
    "sk-",
)


@pytest.mark.parametrize("unit", UNITS)
def test_hostile_lines_take_linear_time(unit):
    def cpu_s(length):
        began_s = time.process_time()
        NO_SECRETS.value(unit * (length // len(unit)))
        return time.process_time() - began_s

    assert cpu_s(200_000) < 1.0  # 1 MB takes a second on a slow core; with quadratic time this took hours


def test_web_token_is_hidden_behind_any_prefix():
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcdefghijk"
    assert NO_SECRETS.text(f"x-{token} {token}.") == "x-<hidden> <hidden>."
