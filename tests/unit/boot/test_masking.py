"""Secrets are taken out of text, in whatever form they stand there; text that has nothing to do with them stays."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote, quote_plus

import pytest
from pydantic import BaseModel, SecretBytes, TypeAdapter, ValidationError

from rocketbox.boot import masking
from rocketbox.boot.log_masking import (
    MaskingFilter,
    forget_with_the_next,
    mask_handlers,
    mask_records,
    thread_failures_logged,
)
from rocketbox.boot.masking import MASK, mask, masked_traceback
from rocketbox.boot.secrets import credentials_in, has_secret_name, secret_values, secrets_of

SECRET = "p4ss/w0rd &\n'of' the bänk"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        repr(SECRET),
        repr(f'"{SECRET}')[2:-1],
        json.dumps(repr(f'"{SECRET}'))[4:-2],
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
    ],
)
def test_a_secret_is_found_in_each_form_that_it_is_written_in(form: str) -> None:
    masked = mask(f"it was {form}!", {SECRET})
    assert masked in (f"it was {MASK}!", f"it was '{MASK}'!", f'it was "{MASK}"!')


@pytest.mark.parametrize("form", [str, repr, json.dumps, lambda secret: json.dumps(repr(secret))])
def test_a_letter_of_more_than_16_bits_is_found(form: Callable[[str], str]) -> None:
    secret = "hunter\U0001f680hunter"
    assert "hunter" not in mask(f"it was {form(secret)}!", {secret})


def test_a_secret_of_bytes_that_are_no_text_is_found() -> None:
    secret = os.fsdecode(b"hunter2-\xff\xfe")  # as os.environ has it
    assert mask(f"it was {secret}, {secret!r}!", {secret}) == f"it was {MASK}, '{MASK}'!"


def test_the_longer_of_two_secrets_is_found_first() -> None:
    assert mask("abcdefgh-ijkl and abcdefgh", {"abcdefgh", "abcdefgh-ijkl"}) == f"{MASK} and {MASK}"


def test_long_lines_of_a_secret_with_several_are_found_alone() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nabc\n-----END PRIVATE KEY-----\n"
    assert mask("read MIIEvQIBADANBgkqhkiG9w0 and abc", {key}) == f"read {MASK} and abc"
    assert mask(f"it is {key}", {key}) == f"it is {MASK}"
    assert mask(f"it is {key.strip()}.", {key}) == f"it is {MASK}."


def test_the_ends_of_a_secret_that_was_cut_are_found() -> None:
    secret = "".join(chr(ord("a") + number % 26) + str(number) for number in range(60))
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python(secret)
    text = mask(str(caught.value), {secret})
    assert f"input_value='{MASK}...{MASK}'" in text
    assert "a0b1" not in text
    assert "59" not in text


def test_what_is_short_is_found_as_a_whole_word_only() -> None:
    assert mask("port 9876 of 127.0.0.1:9876, not 98765 or x9876", {"9876"}) == (
        f"port {MASK} of 127.0.0.1:{MASK}, not 98765 or x9876"
    )
    assert mask("a1 in data1", {"a1"}) == "a1 in data1"


def test_a_short_word_is_found_only_where_values_stand() -> None:
    text = "it must be a time: 'time', time=time and desk:time\ntime"
    assert mask(text, {"time"}) == f"it must be a time: '{MASK}', time={MASK} and desk:{MASK}\n{MASK}"


def test_a_secret_without_letters_and_one_of_short_lines_are_found() -> None:
    assert mask("it is !?&%-$$ or a\nb1 c", {"!?&%-$$", "a\nb1 c"}) == f"it is {MASK} or {MASK}"


def test_of_hundreds_of_secrets_only_those_that_may_be_there_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {f"{number * 7919:012}" for number in range(500)}
    looked_for = []
    pattern_of = masking._pattern

    def noting(present: frozenset[str]) -> re.Pattern[str] | None:
        looked_for.append(present)
        return pattern_of(present)

    monkeypatch.setattr(masking, "_pattern", noting)
    assert mask("nothing of them", secrets) == "nothing of them"
    assert mask(f"it is {7 * 7919:012}.", secrets) == f"it is {MASK}."
    assert looked_for == [{f"{7 * 7919:012}"}]


def test_blank_secrets_are_none() -> None:
    assert mask("a    b", {"", "    "}) == "a    b"


def test_a_traceback_is_masked_with_its_causes() -> None:
    class Bank(BaseModel):
        password: int

    try:
        try:
            Bank.model_validate({"password": "hunter2-of-the-bank"})
        except ValidationError as error:
            raise RuntimeError("hunter2-" + "of-the-bank is wrong") from error
    except RuntimeError as error:
        text = masked_traceback(error, {"hunter2-of-the-bank"})
    assert f"RuntimeError: {MASK} is wrong" in text
    assert f"input_value='{MASK}'" in text
    assert "direct cause" in text
    assert "hunter2-of-the-bank" not in text


def test_a_handler_gets_records_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests.masking")
    for secrets in (["first-secret"], ["second-secret"]):  # the later one takes the place of the earlier one
        MaskingFilter(secrets).install(caplog.handler)
    try:
        log.warning("it is %s, %d", "second-secret", 7)
        log.warning("it is %s", "first-secret")
        try:
            raise ValueError("second-" + "secret")
        except ValueError:
            log.exception("it failed")
    finally:
        MaskingFilter([]).install(caplog.handler)
    assert caplog.messages == [f"it is {MASK}, 7", "it is first-secret", "it failed"]
    assert f"ValueError: {MASK}" in caplog.text
    assert "second-secret" not in caplog.text


@pytest.mark.parametrize(
    ("text", "secret"), [("running test...", "test1234"), ("waiting for desk...", "desk"), ("loading... 1234", "x1234")]
)
def test_a_word_before_dots_is_not_taken_for_a_secret_that_was_cut(text: str, secret: str) -> None:
    assert mask(text, {secret}) == text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("token", True),
        ("AUTH_TOKEN", True),
        ("accessToken", True),
        ("token-url", True),
        ("MAX_TOKENS", False),
        ("tokenizer", False),
        ("max-tokens", False),
    ],
)
def test_a_name_says_token_as_a_word(name: str, says: bool) -> None:
    assert has_secret_name(name) is says


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("postgresql://u:p@ss-word@host/db", "p@ss-word"),
        ("amqp://desk:it's-hunter@example.org:5672/%2f", "it's-hunter"),
        ("mongodb://u:hunter22@h1:27017,h2:27017/db", "hunter22"),
        ("redis://h1:6379,redis://u:hunter22@h2:6379", "hunter22"),
        ("desk:hunter22@example.org:5432", "hunter22"),
        ("jdbc:oracle:thin:scott/hunter22@//host:1521/x", "hunter22"),
        ('PlainLoginModule required username="u" password="hunter 22;x";', "hunter 22;x"),
        ("host=h password='it''s hunter' user=u", "it''s hunter"),
        ('{"user": "u", "password": "hunter22"}', "hunter22"),
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=aGVsbG8rd29ybGQ/eA==;X=1", "aGVsbG8rd29ybGQ/eA=="),
        ("Endpoint=sb://x/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0LTEyMw=", "c2VjcmV0LTEyMw="),
        ("https://a.example.org/c?sv=2024&sig=Ab%2Bcd12345&se=1", "Ab%2Bcd12345"),
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        (
            "use eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF123-_ for it",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcDEF123-_",
        ),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEvQ\n-----END RSA PRIVATE KEY-----", "MIIEvQ"),
    ],
)
def test_what_is_secret_by_its_look_is_found_in_a_value(text: str, secret: str) -> None:
    found = set(credentials_in(text))
    assert found
    assert secret not in mask(f"said {text}", found)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/a:b@c", "ns1:9876;ns2:9876", "mailto:desk@example.org", "desk@example.org",
        "-----BEGIN CERTIFICATE-----\nMIIEvQ\n-----END CERTIFICATE-----", "the token bucket has a basic limit", "12:30",
    ],
)  # fmt: skip
def test_what_looks_harmless_is_left_alone(text: str) -> None:
    assert list(credentials_in(text)) == []


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("auth", True), ("REDIS_AUTH", True), ("basicAuth", True), ("jwt", True), ("signing-pem", True),
        ("passphrase", True), ("private-key", True), ("account-key", True), ("authorization", True),
        ("SMTP_PASS", True), ("dbPass", True), ("pass", True), ("bypass", False), ("pass-through", False),
        ("auth-method", False), ("author", False), ("oauth-url", False), ("item", False),
    ],
)  # fmt: skip
def test_a_name_says_that_its_value_is_secret(name: str, says: bool) -> None:
    assert has_secret_name(name) is says


@pytest.mark.parametrize(
    "text",
    [
        "select * from t where min_tokens = 1000", "(context_tokens=8192)", "total_tokens: '1532'", "tokens=5; pass=2.",
        "band-pass=44_100.5&retry-pass=true", '{"retry-pass": "false", "tokens": "8192"}', "pass=-1e9",
        "max_tokens=all", "${CONTEXT_TOKENS:8192}",
    ],
)  # fmt: skip
def test_numbers_and_switches_are_no_secrets_by_the_look_of_a_text(text: str) -> None:
    assert list(credentials_in(text)) == []


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("smtp_pass=hunter2", "hunter2"), ("access_tokens=hunter2,b", "hunter2"), ("password=12345678", "12345678"),
        ("token=true1", "true1"), ("token: '1234'", "1234"), ("admin_tokens=hunter2", "hunter2"),
        ("account-tokens=hunter2", "hunter2"), ("${SMTP_PASS:hunter2}", "hunter2"), ("pass=1234-hunt", "1234-hunt"),
    ],
)  # fmt: skip
def test_what_is_no_number_and_what_no_number_is_called_stays_secret(text: str, secret: str) -> None:
    assert set(credentials_in(text)) == {secret}


def test_variables_of_names_that_numbers_have_too_are_secret_but_for_numbers_and_switches() -> None:
    numbers = {"CI_TOKENS": "1000", "CONTEXT_TOKENS": "4096", "BAND_PASS": "44100.5", "RETRY_PASS": "TRUE"}
    secrets = {"SMTP_PASS": "hunter2", "ADMIN_TOKENS": "hunter3", "API_TOKEN": "1234", "DB_PASSWORD": "123456"}
    assert secrets_of({**numbers, **secrets}) == set(secrets.values())


def test_a_secret_is_found_in_the_repr_of_bytes() -> None:
    secret = "hünter2-\U0001f680-'22"
    assert "nter2" not in mask(f"got {secret.encode()!r} and {bytearray(secret.encode())!r}", {secret})
    raw = b"\xff\xfehunter-22"
    (of_bytes,) = secret_values(SecretBytes(raw))
    assert "unter" not in mask(f"got {raw!r} and {raw.decode(errors='replace')}", {of_bytes})


def test_records_of_rocketbox_are_masked_for_every_handler(caplog: pytest.LogCaptureFixture) -> None:
    mask_records("tests", {"third-secret"})
    try:
        logging.getLogger("rocketbox.some").warning("it is %s", "third-secret")
        logging.getLogger("rocketboxes").warning("it is %s", "third-secret")
        try:
            raise ValueError("third-" + "secret")
        except ValueError:
            logging.getLogger("rocketbox").exception("it failed")
        mask_records("tests", {"third-secret"}, everywhere=True)
        logging.getLogger("rocketboxes").warning("it was %s", "third-secret")
    finally:
        mask_records("tests", ())
    assert caplog.messages == [f"it is {MASK}", "it is third-secret", "it failed", f"it was {MASK}"]
    assert f"ValueError: {MASK}" in caplog.text
    assert [record.exc_info for record in caplog.records] == [None] * 4  # what a formatter of its own would write anew


@pytest.mark.parametrize(
    "arguments", [("%d", "eleventh-secret"), ("%s %s", "eleventh-secret"), ("%(a)d", {"a": "eleventh-secret"})]
)
def test_what_fits_no_message_is_told_by_a_handler_without_secrets(
    arguments: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """``logging`` writes to stderr what a record was made of that it can make no message of."""
    handler = logging.StreamHandler()
    logger = logging.getLogger("rocketbox.some")
    logger.addHandler(handler)
    logger.propagate = False
    mask_records("tests", {"eleventh-secret"})
    try:
        logger.warning(*arguments)
    finally:
        mask_records("tests", ())
        logger.removeHandler(handler)
        logger.propagate = True
    told = capsys.readouterr().err.rpartition("Message: ")[2]
    assert MASK in told
    assert "eleventh" not in told


def test_the_names_of_loggers_and_threads_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("pool.amqp://desk:fifteenth-secret@mq")
    thread = threading.Thread(target=logger.warning, args=("open",), name="reads amqp://desk:fifteenth-secret@mq")
    mask_records("tests", {"fifteenth-secret"}, everywhere=True)
    try:
        thread.start()
        thread.join()
        logging.getLogger("pool").warning("another")
    finally:
        mask_records("tests", ())
    first, second = caplog.records
    names = (f"pool.amqp://desk:{MASK}@mq", f"reads amqp://desk:{MASK}@mq")
    assert (first.name, first.threadName, first.getMessage()) == (*names, "open")
    assert (second.name, second.threadName) == ("pool", "MainThread")
    assert "fifteenth" not in str([vars(record) for record in caplog.records])


def test_the_lines_of_a_stack_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    mask_records("tests", {"twelfth-secret"})
    try:
        logging.getLogger("rocketbox.some").warning("so far", stack_info=bool("twelfth-secret"))
    finally:
        mask_records("tests", ())
    assert f'stack_info=bool("{MASK}")' in caplog.text
    assert "twelfth" not in caplog.text


RAISED_INSIDE_A_LOCK = """
import gc, logging, logging.handlers, queue
from rocketbox.boot.log_masking import mask_records, thread_failures_logged

class Leaves:
    def __init__(self):
        self.itself = self

    def __del__(self):
        raise ValueError("no longer hunter2-of-the-bank")

class Collects(queue.Queue):
    def _put(self, item):  # as the collector may at any allocation
        super()._put(item)
        gc.collect()

gc.disable()
mask_records("tests", {"hunter2-of-the-bank"})
logging.getLogger().addHandler(logging.handlers.QueueHandler(Collects()))
with thread_failures_logged():
    Leaves()
    logging.getLogger("tests").warning("hello")
    print("went on")
"""


def test_what_del_raises_while_a_handler_holds_a_lock_is_written_masked_and_nothing_waits() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RAISED_INSIDE_A_LOCK], capture_output=True, text=True, timeout=30, check=True
    )
    assert ran.stdout == "went on\n"
    assert "Exception ignored in: <function Leaves.__del__" in ran.stderr
    assert f"ValueError: no longer {MASK}" in ran.stderr
    assert "hunter2" not in ran.stderr


def test_an_error_without_a_value_that_nobody_can_be_told_is_named_by_its_type(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class TwoNeededError(Exception):
        def __init__(self, one: object, two: object) -> None: ...

    said = SimpleNamespace(exc_type=TwoNeededError, exc_value=None, exc_traceback=None, err_msg=None, object=7)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # pytest has one
    with thread_failures_logged():
        sys.unraisablehook(cast("sys.UnraisableHookArgs", said))
    assert re.fullmatch(r"Exception ignored in: 7\n.*TwoNeededError\n", capfd.readouterr().err)


def test_a_handler_gets_fields_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    MaskingFilter(["fourth-secret"]).install(caplog.handler)
    try:
        logging.getLogger("tests.masking").warning(
            "it is", extra={"key": "fourth-secret", "more": ["fourth-secret", 7]}
        )
    finally:
        MaskingFilter([]).install(caplog.handler)
    assert (vars(caplog.records[0])["key"], vars(caplog.records[0])["more"]) == (MASK, f"['{MASK}', 7]")


def test_services_of_one_name_that_run_at_once_are_all_masked(caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = object(), object(), object()
    log = logging.getLogger("rocketbox.some")
    try:
        mask_records("tests", {"fifth-secret"}, owner=first)
        mask_records("tests", {"sixth-secret"}, owner=second)
        log.warning("%s", "fifth-secret sixth-secret")
        forget_with_the_next(first)
        log.warning("%s", "fifth-secret")
        mask_records("tests", {"seventh-secret"}, owner=third)
        log.warning("%s", "fifth-secret sixth-secret seventh-secret")
    finally:
        for owner in (first, second, third):
            mask_records("tests", (), owner=owner)
            forget_with_the_next(owner)
    assert caplog.messages == [f"{MASK} {MASK}", MASK, f"fifth-secret {MASK} {MASK}"]


def test_a_handler_masks_fields_of_all_services_that_ask_for_it(caplog: pytest.LogCaptureFixture) -> None:
    owners = {object(): "eighth-secret", object(): "ninth-secret"}
    try:
        for owner, secret in owners.items():
            mask_records("tests", {secret}, everywhere=True, owner=owner)
            mask_handlers({secret})
        logging.getLogger("tests.masking").warning("it is", extra={"key": "eighth-secret", "more": "ninth-secret"})
    finally:
        for owner in owners:
            mask_records("tests", (), owner=owner)
            forget_with_the_next(owner)
        mask_handlers(())
    assert (vars(caplog.records[0])["key"], vars(caplog.records[0])["more"]) == (MASK, MASK)


def test_a_field_that_cannot_be_written_out_fails_no_call_of_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    class Detached:
        def __repr__(self) -> str:
            raise ValueError("the session is closed")

    MaskingFilter(["tenth-secret"]).install(caplog.handler)
    try:
        logging.getLogger("tests.masking").warning("it is", extra={"row": Detached()})
    finally:
        MaskingFilter([]).install(caplog.handler)
    assert caplog.messages == ["it is"]


def test_text_of_many_dots_and_no_secret_is_left_alone_at_once() -> None:
    text = "a..." * 500_000
    began = time.process_time()
    assert mask(text, {"hunter2-of-the-bank"}) is text
    assert time.process_time() - began < 0.5
