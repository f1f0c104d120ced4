"""The numbered scripts of `sql/` that databases out there have been set up with."""

from __future__ import annotations

from collections import Counter

import pytest

from airflow_provider_pgddl.engine.journal.migrations import SETS, Migration, migrations

# SHA-256 of every up script. A database keeps those that it was set up with, and is refused where one differs.
LANDED = {
    "core/001_capture": "39a2094c6ced2f273c932c85bf72e44356fb3053e8b3694ea6d4bb073c84c52f",
    "core/002_ddl": "bdc7722d470931546aed1b1ad2eacf920edd23bee87e9408d767b6ccf6926fae",
    "core/003_direct": "05f56c0967106abfd92ee5ec61aab74e3d523baf7a33afdb84dc89970bcd0517",
    "core/004_slot": "96cdbcfd80c4064a49320ca5db13d46b3e1778268d9861c45af9c9318341209b",
    "core/005_leave": "1cfe54bfebf15c1c4561fa2d072f3979243c48cf34ae05232934adbe0374476b",
    "core/008_capture_guard": "c70f4d63cf3ee1695d1301c08def2b678295304b2f6c19363488030c5134652d",
    "core/009_leave_under_lock": "69ef6ec2418af75f8c6c849558187ff1e6179adc3ab1f53fd95a106e22000cf5",
    "core/010_client_settings": "f19004399eb4e248d1cdc35cd5574fad410489b79dfbf386a8efe915938709e0",
    "core/011_hold": "ff90e803d29513bfc330618b6d31d5299d927d631c076e143156ab0a78cff2fe",
    "core/013_way_back": "5835f2475d8ce575590e983cbc87bfa39c6b7d36291cab27d609ffb283ef5653",
    "core/014_granted": "68afac8f00b6e04a359f224de1ef60c72abdd5b73140f3f7adc27ee5ae32468d",
    "core/015_fit_to_publish": "976c4cfdb8622fd9e828ed23e24f39a13fa6a7d8798dfafd264673c618281ca0",
    "core/016_whole_key": "633acd62a716c934494fd44664705409efb8e11325a76a2c20f61ed4d76347e2",
    "core/017_no_policies": "05d9a1276cc593c3cd5c340fdc81597a19cf809417630bacd7cfbd16a5d906a0",
    "core/018_clients_rights": "eefe19bdf4fec9f77021812bdb208724834a965a1a6f9cdac2f95692807a6015",
    "core/019_generated": "14cb9a21ea2fe5e98ff69fdefca613af3bf7b97f1e341cc5152605a2f899282a",
    "core/020_virtual": "db8a040f3137539afc57e8ca82c1598779d55789b9139be2330a3aabf3dc5000",
    "injector/001_identities": "025b02d712de3d55dd9cf65556b34d5109a713cf6f61ca4f7d25b8e7b8e13edb",
    "injector/002_survive": "ce35cde54540485f1651d642a052f295154601d20d7da22b0cac9281571df950",
    "journal/001_journal": "cd48f76b8576ac2bb9c32c75ed4d2a622cf3b1fb22b1e076de30e9b72aecc5c9",
    "journal/002_ddl": "a9279b36a8898d24465094ddb26362c4c286f353f513061665265282f078b6bf",
    "journal/003_schema": "b94294e31134155e64b3780f7051c74ab3b0fdfd8bea97d45091c1c9d264439c",
    "journal/004_chunk_snapshot": "12ff56eb63f988958f7917898260258722527202b55860fca326abc9c38d5b46",
    "journal/005_control": "0677324295e2ffeb274050fe521c39071ad955357a10f77b2a25b283308a6264",
    "journal/006_lag": "151a2fde6ec92e42c09798d01d308afd47b28daf07054aa40a4dca16b02a2ca0",
    "journal/007_slot": "bd633a98b859ced37a6f9a1a8249d2fe883f3f453176a564f224f04984b1618f",
    "journal/008_reverse": "942a9b7e0ce75b78f3c7cddc413c439ab9c44702e263e1ace6c06185bb115006",
    "journal/009_ordered": "64bd3e229f5c3a97fa9e533d69d456ce4425a7d246b3aee9582f3a6b446f0d71",
    "journal/010_claim": "692f835140f506a99ea036600b8f7e9829927e1563ff2bbe4ed49ef9cfeb1c0a",
    "journal/011_key_ranges": "c5b34b3fa91a32236eecd1473439a60d640a006907544e15157492c00f796d25",
    "journal/012_follow_ups": "0bdaa00d0f9c852ca9143eaf68930bed281e619461f7a3ea6a4be70bbd1046f4",
    "journal/015_finish": "88851eecf838d75cd7738d2d4503f43f541e7868984fb6bae2e2788b47479e42",
    "journal/017_way_back": "028d8c8e3f50e3bb452a08e6bc6b2390d62112443d4fb9e081751b77ac4c58ba",
    "journal/018_left_out": "d53fec4aca998a473dc7dc6df7a65add4ce134f172a97ab245e9dfa80efe2e75",
    "journal/020_actions": "427278ed4563e7c1e6ffa990af2466e4e08f69714df70c88228a02e8f51a73dd",
    "journal/021_reconfigurations": "6bd13db49d42bb2a1b3f6fb0e723c867a678d7e09980957fa1379470bec70667",
    "journal/022_acknowledged": "c51c494be256311d1aa8ec20074b8d442fede2587f96074532df516bc75103a5",
    "journal/023_windows": "73e81be2ee5e19d56e1757dc8abb06593608d07212136de600f1f3d88ffc7c59",
    "journal/024_source_database": "14d6169ac315275674ac3a93aedd78f4e8affe53fcf2fed23d050ba68ff84549",
}


def script(migration: Migration) -> str:
    return f"{migration.set_name}/{migration.version:03}_{migration.name}"


SCRIPTS = {script(m): m for set_name in SETS for m in migrations(set_name)}


@pytest.mark.parametrize("name", LANDED)
def test_what_has_landed_stays_as_it_is(name: str) -> None:
    assert name in SCRIPTS, f"{name} is gone: a landed migration is never taken away or renamed"
    same = SCRIPTS[name].checksum == LANDED[name]
    assert same, f"{name} was edited: a landed migration is never edited: add a new one"


def test_every_migration_is_recorded_here() -> None:
    new = {name: m.checksum for name, m in SCRIPTS.items() if name not in LANDED}
    assert not new, f"record them with their sums, to keep them from being edited once they have landed: {new}"


def test_no_number_is_given_twice() -> None:
    numbers = Counter((m.set_name, m.version) for m in SCRIPTS.values())
    assert set(numbers.values()) == {1}
