"""What becomes of an answer that Ray cannot bring, without a cluster."""

import pytest

ray = pytest.importorskip("ray")
from ray.exceptions import (  # noqa: E402
    ActorUnavailableError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RayError,
    RaySystemError,
)

from esper.tolaria.worlds.cluster import actor  # noqa: E402
from esper.tolaria.worlds.cluster.connecting import ClusterError  # noqa: E402
from esper.tolaria.worlds.remote import WorkerDied  # noqa: E402


def fetch(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Fetch an answer of which Ray has this to say."""
    link = actor.ActorLink.__new__(actor.ActorLink)
    link.name = "worker 3 on 10.0.0.7 (abc)"

    def raising(_: object) -> bytes:
        raise error

    monkeypatch.setattr(ray, "get", raising)
    link._fetch(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        ObjectStoreFullError("no room for 9 bytes"),
        OutOfDiskError("no room on the disk"),
        RayError("ask() raised:\nray.exceptions.ObjectStoreFullError: no room for 9 bytes"),
    ],
    ids=["store", "disk", "in the worker"],
)
def test_a_full_object_store_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(
        ClusterError,
        match=r"worker 3 on 10.0.0.7 \(abc\): the object store of a node is full .*--object-store-mem",
    ):
        fetch(monkeypatch, error)


@pytest.mark.parametrize(
    "error",
    [ActorUnavailableError("it is restarting", b"0" * 16), ObjectLostError("0" * 56, None, "")],
    ids=["worker", "answer"],
)
def test_an_answer_lost_with_its_worker_is_a_death(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(WorkerDied, match=r"worker 3 on 10.0.0.7 \(abc\) died: "):
        fetch(monkeypatch, error)


def test_whatever_else_ray_says_names_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"worker 3 on .*: RaySystemError: System error: broken"):
        fetch(monkeypatch, RaySystemError("broken"))  # type: ignore[no-untyped-call]
