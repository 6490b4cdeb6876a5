"""The benchmark's own parts, so that it cannot rot; no time is asserted."""

from __future__ import annotations

from bench.envspec_bench import GROUPS, PACKAGES, SNAPSHOTS, Figures, Times, fleet, in_turn
from envspec.compare import compare
from tests.envspec.docs.example import snapshots


def test_the_fleet_is_as_large_and_as_uneven_as_said() -> None:
    hosts = fleet(snapshots()["gpu-01"])
    assert len(hosts) == SNAPSHOTS
    assert all(host.snapshot is not None and len(host.snapshot.distributions) == PACKAGES for host in hosts)
    report = compare(hosts)
    assert sum(group.kind == "hosts" for group in report.groups) == GROUPS
    changed = {dist.name for host in hosts if host.snapshot for dist in host.snapshot.distributions if dist.version and dist.version.startswith("2.")}
    assert {row.key for row in report.rows} == changed
    assert compare(list(reversed(hosts))) == report


def test_contestants_take_turns_and_the_first_round_is_not_counted() -> None:
    order: list[str] = []
    times = in_turn(2, a=lambda: order.append("a"), b=lambda: order.append("b"))
    assert order == ["a", "b"] * 3
    assert set(times) == {"a", "b"}


def test_a_figure_has_the_peer_s_and_the_ratio() -> None:
    figures = Figures()
    figures.add("capture", Times(0.5, 0.25), "pip inspect", Times(2.0, 1.0))
    assert figures.all == [
        {
            "what": "capture",
            "ours_s": 0.5,
            "peer": "pip inspect",
            "peer_s": 2.0,
            "ratio": 4.0,
            "ours_cpu_s": 0.25,
            "peer_cpu_s": 1.0,
            "cpu_ratio": 4.0,
        }
    ]
