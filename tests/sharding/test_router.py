"""Where a call goes follows from what it is about, who calls, and which peers answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import ErrorReason
from cronoq_server.sharding import (
    LOCAL,
    Caller,
    Credential,
    FanOut,
    Forward,
    OnAll,
    OnName,
    OnOwn,
    OnPool,
    OnResource,
    OnTask,
    OnWork,
    Refuse,
    Router,
    Shard,
    Subject,
    Topology,
)

CPU = Shard("cpu", 1, frozenset({"default"}), frozenset({"api"}), "https://cpu.test:7070")
GPU = Shard("gpu", 2, frozenset({"llm"}), frozenset({"gpu"}), "https://gpu.test:7070")
WEB = Shard("web", 3, frozenset({"mail"}), frozenset({"smtp"}), "http://web.test:7070")
TOPOLOGY = Topology([CPU, GPU, WEB], "cpu")

TOKEN = Caller(Credential.TOKEN)
CERTIFICATE = Caller(Credential.CERTIFICATE)
PASSED_ON = Caller(Credential.TOKEN, forwarded=True)

SINGLES: list[tuple[Subject, Subject]] = [
    (OnPool("llm"), OnPool("mail")),
    (OnTask(pack(2, 1, 1)), OnTask(pack(3, 1, 1))),
    (OnResource("gpu"), OnResource("smtp")),
]
SPREADS: list[Subject] = [OnAll(), OnName(changes=False), OnName(changes=True)]
OWN: list[Subject] = [
    OnOwn(),
    OnPool("default"),
    OnTask(pack(1, 1, 1)),
    OnResource("api"),
    OnWork("default"),
]


def router(silent: Iterable[Shard] = (), *, insecure: bool = False) -> Router:
    """The router of `cpu`, with peers that do not answer."""
    dead = set(silent)
    return Router(TOPOLOGY, lambda shard: shard not in dead, insecure_peer_http=insecure)


@pytest.mark.parametrize("subject", OWN)
@pytest.mark.parametrize("caller", [TOKEN, CERTIFICATE, PASSED_ON, Caller()])
def test_what_is_the_servers_own_is_answered_there(subject: Subject, caller: Caller) -> None:
    """However the caller came, and whether or not peers answer."""
    assert router([GPU, WEB]).decide(subject, caller) == LOCAL


@pytest.mark.parametrize(("safe", "open_http"), SINGLES)
def test_one_shards_matter_is_passed_on_with_the_callers_token(
    safe: Subject, open_http: Subject
) -> None:
    """Encrypted it may go anywhere; in the open only where that is allowed."""
    assert router().decide(safe, TOKEN) == Forward(GPU)
    assert router().decide(open_http, TOKEN) == Refuse(ErrorReason.WRONG_SHARD, (WEB,))
    assert router(insecure=True).decide(open_http, TOKEN) == Forward(WEB)
    assert router().decide(open_http, Caller()) == Forward(WEB)  # there is no token to lose


@pytest.mark.parametrize(("safe", "open_http"), SINGLES)
def test_a_certificate_can_not_be_passed_on(safe: Subject, open_http: Subject) -> None:
    """Its holder is told where to go, whatever the server is allowed."""
    for subject, shard in ((safe, GPU), (open_http, WEB)):
        refused = router(insecure=True).decide(subject, CERTIFICATE)
        assert refused == Refuse(ErrorReason.WRONG_SHARD, (shard,))


@pytest.mark.parametrize(("subject", "_other"), SINGLES)
def test_what_was_passed_on_goes_no_further(subject: Subject, _other: Subject) -> None:
    """Two servers whose tables differ refuse each other's calls instead of playing them back."""
    assert router().decide(subject, PASSED_ON) == Refuse(ErrorReason.WRONG_SHARD, (GPU,))


@pytest.mark.parametrize(("subject", "_other"), SINGLES)
def test_a_shard_that_does_not_answer_is_not_waited_for(subject: Subject, _other: Subject) -> None:
    """The caller hears at once that it is unavailable."""
    refused = router([GPU]).decide(subject, TOKEN)
    assert refused == Refuse(ErrorReason.SHARD_UNAVAILABLE, (GPU,))


def test_workers_are_sent_to_the_shard_of_their_pool() -> None:
    """A stream is never passed on, not even to a shard that does not answer."""
    for caller in (TOKEN, CERTIFICATE, Caller()):
        refused = router([GPU]).decide(OnWork("llm"), caller)
        assert refused == Refuse(ErrorReason.WRONG_SHARD, (GPU,))
    assert router().decide(OnWork("nowhere"), TOKEN) == LOCAL


def test_reads_ask_every_shard_that_can_be_asked_and_name_the_others() -> None:
    """A shard lacks because it is silent, or because the credential may not travel there."""
    for read in (OnAll(), OnName(changes=False)):
        route = router([GPU]).decide(read, TOKEN)
        assert route == FanOut((CPU,), silent=(GPU,), barred=(WEB,))
        assert isinstance(route, FanOut)
        assert route.missing == ("gpu", "web")
        assert router(insecure=True).decide(read, TOKEN) == FanOut((CPU, GPU, WEB))
        assert router().decide(read, CERTIFICATE) == FanOut((CPU,), barred=(GPU, WEB))


def test_a_change_by_name_needs_every_shard() -> None:
    """The missing one might have the name as well."""
    change = OnName(changes=True)
    assert router(insecure=True).decide(change, TOKEN) == FanOut((CPU, GPU, WEB))
    for caller, silent, missing in (
        (Caller(), [GPU], (GPU,)),
        (TOKEN, [], (WEB,)),
        (CERTIFICATE, [], (GPU, WEB)),
    ):
        refused = router(silent).decide(change, caller)
        assert refused == Refuse(ErrorReason.SHARD_UNAVAILABLE, missing)


def test_a_filter_by_pool_spares_the_other_shards() -> None:
    """What cannot hold anything is neither asked nor missed."""
    assert router([GPU]).decide(OnAll(("default",)), TOKEN) == LOCAL
    assert router([WEB]).decide(OnAll(("default", "llm")), TOKEN) == FanOut((CPU, GPU))
    assert router().decide(OnAll(("nowhere",)), TOKEN) == LOCAL


SUBJECTS: list[Subject] = [
    *OWN,
    *itertools.chain.from_iterable(SINGLES),
    *SPREADS,
    OnAll(("default", "llm")),
]


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if not isinstance(s, OnPool | OnResource)])
@pytest.mark.parametrize("credential", Credential)
@pytest.mark.parametrize("silent", [[], [GPU], [WEB], [GPU, WEB]])
def test_nothing_is_said_about_shards_that_the_caller_may_not_use(
    subject: Subject, credential: Credential, silent: list[Shard]
) -> None:
    """With pools of one's own shard alone, no decision ever holds another shard."""
    caller = Caller(credential, pools=frozenset({"default"}))
    assert router(silent).decide(subject, caller) == LOCAL


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("credential", Credential)
def test_a_call_that_was_passed_on_is_never_passed_on_again(
    subject: Subject, credential: Credential
) -> None:
    """Whatever it is about: answered here or refused."""
    route = router(insecure=True).decide(subject, Caller(credential, forwarded=True))
    assert route == LOCAL or isinstance(route, Refuse)


def test_without_shards_everything_is_local() -> None:
    """No peers, no questions."""
    alone = Router(Topology.single(["default"]), lambda _: False)
    for subject in SUBJECTS:
        assert alone.decide(subject, TOKEN) == LOCAL
