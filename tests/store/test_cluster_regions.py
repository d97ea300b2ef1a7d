"""The regions in which metrics of hosts are published."""

from __future__ import annotations

from corral.store import Store
from corral.store.clusters import REGIONS_OF_OWNER_MAX


def test_a_user_adds_only_so_many_regions_to_those_with_metrics_of_hosts() -> None:
    """Metrics of each GPU are published in each of these regions, every second. Any name can be that of a region."""
    clusters = Store(None).clusters
    for number in range(3 * REGIONS_OF_OWNER_MAX):
        clusters.put(f"aa-{number}", "c", "ACTIVE", {}, "user/bob")
        clusters.put(f"root-{number}", "c", "ACTIVE", {})
    for region in ("us-east-1", "aa-0"):
        clusters.put(region, "d", "ACTIVE", {}, "user/ann")
    clusters.put("aa-59", "d", "ACTIVE", {})
    found = clusters.measured_regions()
    assert {"us-east-1", "aa-0", "aa-59"} <= {*found} and len({*found}) == len(found)
    assert sum(region.startswith("root-") for region in found) == 3 * REGIONS_OF_OWNER_MAX
    assert REGIONS_OF_OWNER_MAX <= sum(region.startswith("aa-") for region in found) <= REGIONS_OF_OWNER_MAX + 2
