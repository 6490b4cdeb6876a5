"""Two images proved identical, and every tampering with one of them found."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from envspec.cli import main
from envspec.findings import Report
from envspec.images import labels
from envspec.images.read import named_images
from envspec.output import Sink
from tests.envspec.build import wheel_files
from tests.envspec.engine import PREFIX, containers_of
from tests.envspec.images.conftest import PACKAGES, SPECULATORS, STACK, Pair, Workshop, lock_text

pytestmark = pytest.mark.docker


@dataclass(frozen=True, kw_only=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def report(self) -> Report:
        return Report.from_dict(json.loads(self.out))

    @property
    def codes(self) -> dict[str, set[str]]:
        """Finding code to subjects, without noise and what is declared."""
        found: dict[str, set[str]] = {}
        for item in self.report.findings:
            if item.severity != "noise" and not item.declared:
                found.setdefault(item.code, set()).add(item.subject)
        return found

    def what(self, code: str) -> str:
        return " / ".join(item.what for item in self.report.findings if item.code == code)


def run(*words: str) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    code = main(["images", *words], Sink(stdout=out, stderr=err, environment={}))
    return Outcome(code=code, out=out.getvalue(), err=err.getvalue())


def verify(*words: str) -> Outcome:
    return run("verify", "--json", *words)


def test_a_pair_of_one_build_is_identical(workshop: Workshop, pair: Pair) -> None:
    before = containers_of(workshop.client, pair.train)
    outcome = run("verify", pair.train, pair.infer)
    assert (outcome.code, outcome.err) == (0, "")
    digest = workshop.client.images.get(pair.train).attrs["Config"]["Labels"][labels.ENVIRONMENT_DIGEST]
    assert outcome.out.endswith(f"No findings.\nidentical: 2 distributions, 12 files, digest {digest}\n")
    assert containers_of(workshop.client, pair.train) == before
    as_json = verify(pair.train, pair.infer)
    assert as_json.report.notes == (f"identical: 2 distributions, 12 files, digest {digest}",)
    assert {host.digest for host in as_json.report.hosts} == {digest}
    assert as_json.report.command == "images verify"


def test_one_image_is_held_against_its_own_records(pair: Pair, tmp_path: Path) -> None:
    assert verify(pair.train).report.notes[0].startswith("identical: 2 distributions")
    (tmp_path / "requirements.lock").write_bytes(lock_text())
    assert verify(pair.train, "--lock", str(tmp_path / "requirements.lock")).code == 0


def test_the_same_image_twice_is_identical(pair: Pair) -> None:
    outcome = verify(pair.train, pair.train)
    assert outcome.code == 0
    assert [host.label for host in outcome.report.hosts] == [f"infer={pair.train}", f"train={pair.train}"]


def test_two_builds_apart_are_identical_with_other_layers(workshop: Workshop, pair: Pair) -> None:
    again = workshop.build(f"{PREFIX}-again", role="infer")
    outcome = verify(pair.train, again)
    assert outcome.code == 0, outcome.out
    assert outcome.report.notes[0].startswith("identical: ")
    assert any("the layers differ, the files in them do not" in note for note in outcome.report.notes)


# Tampering. Each makes an image from the right one; what must be found stands beside it, and nothing else may be.


def _replaced(shop: Workshop) -> dict[str, bytes | str | None]:
    """speculators 0.7.0 from another wheel: same version, other build and files."""
    wheel = wheel_files("speculators", "0.7.0", {**SPECULATORS, "speculators/models/eagle3.py": b"CONFIG = 2\n"}, build="2")
    return {f"{shop.site}/{path}": data for path, data in wheel.items()}


def _edited_with_record(shop: Workshop) -> dict[str, bytes | str | None]:
    """An edit whose author also mends RECORD, so that no installer's check sees it."""
    files = wheel_files("alpha", "1.0", {**PACKAGES["alpha"][1], "alpha/core.py": b"def value():\n    return 2\n"})
    return {f"{shop.site}/{path}": data for path, data in files.items()}


Maker = Callable[[Workshop, Pair, str], str]


def _script(script: str) -> Maker:
    return lambda shop, pair, name: shop.commit(pair.infer, {}, name, script=script.replace("SITE", f"/{shop.site}"))


def _config(**config: Any) -> Maker:
    return lambda shop, pair, name: shop.commit(pair.infer, {}, name, config=config)


@dataclass(frozen=True, kw_only=True)
class Tampering:
    make: Maker
    found: Mapping[str, set[str]]
    says: Mapping[str, str] = field(default_factory=dict)


_ENVIRONMENT_LABEL = {"EP825": {labels.ENVIRONMENT_DIGEST}}
_FILES = {"EP822": {"/opt/env"}, **_ENVIRONMENT_LABEL}

TAMPERINGS: dict[str, Tampering] = {
    "one file edited in place": Tampering(
        make=_script("echo 'B = 2' >> SITE/alpha/core.py"),
        found={"EP208": {"alpha"}, "EP824": {"IMAGE"}, **_FILES},
        says={"EP208": "alpha 1.0: 1 file changed after installation: alpha/core.py", "EP822": "alpha/core.py (other content)"},
    ),
    "one bit of a file that no package lists": Tampering(
        make=_script("echo '#' >> /opt/env/pyvenv.cfg"),
        found=_FILES,
        says={"EP822": "1 path of the environment differs", "EP825": "the image holds sha256:"},
    ),
    "an edit whose author mended RECORD": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, _edited_with_record(shop), name),
        found={"EP207": {"alpha"}, "EP824": {"IMAGE"}, **_FILES},
        says={"EP207": "alpha has one version and build, and different files", "EP824": "alpha 1.0 has other files"},
    ),
    "a package replaced by the same version from another build": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, _replaced(shop), name),
        found={"EP213": {"speculators"}, "EP824": {"IMAGE"}, **_FILES},
        says={"EP213": "speculators comes from different wheels", "EP824": "speculators 0.7.0 has other files"},
    ),
    "a package missing": Tampering(
        make=_script("rm -r SITE/speculators SITE/speculators-0.7.0.dist-info"),
        found={"EP201": {"speculators"}, "EP824": {"IMAGE"}, **_FILES},
        says={"EP201": "speculators 0.7.0 is in the lock, not installed", "EP824": "speculators 0.7.0 is gone"},
    ),
    "an extra package": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {f"{shop.site}/{path}": data for path, data in wheel_files("gamma", "3", {"gamma.py": b""}).items()}, name),
        found={"EP212": {"gamma"}, "EP824": {"IMAGE"}, **_FILES},
        says={"EP212": "gamma 3 is installed, and not in the lock", "EP824": "gamma 3 was added"},
    ),
    "a variable changed": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {}, name, config={"Env": ["OMP_NUM_THREADS=8"]}),
        found={"EP823": {"OMP_NUM_THREADS"}},
        says={"EP823": "OMP_NUM_THREADS is 1 in TRAIN, 8 in IMAGE"},
    ),
    "a variable that changes numerics added": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {}, name, config={"Env": ["NVIDIA_TF32_OVERRIDE=1"]}),
        found={"EP823": {"NVIDIA_TF32_OVERRIDE"}, "EP706": {"NVIDIA_TF32_OVERRIDE"}},
        says={"EP823": "NVIDIA_TF32_OVERRIDE is not set in TRAIN, 1 in IMAGE"},
    ),
    "a secret in a variable": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {}, name, config={"Env": ["HF_TOKEN=hf_abc"]}),
        found={"EP823": {"HF_TOKEN"}},
        says={"EP823": "HF_TOKEN is not set in TRAIN, a secret in IMAGE"},
    ),
    "another user": Tampering(make=_config(User="0"), found={"EP823": {"User"}}, says={"EP823": "User is 1000 in TRAIN, 0 in IMAGE"}),
    "another working directory": Tampering(make=_config(WorkingDir="/opt"), found={"EP823": {"WorkingDir"}}),
    "the user's own packages let in": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {}, name, config={"Env": ["PYTHONNOUSERSITE="]}),
        found={"EP823": {"PYTHONNOUSERSITE"}, "EP827": {"PYTHONNOUSERSITE"}},
    ),
    "a system file replaced": Tampering(
        make=_script("echo 'import os' >> $(python3 -B -c 'import os; print(os.__file__)')"),
        found={"EP822": {"/"}},
        says={"EP822": "1 path of the system differs"},
    ),
    "the tools edited": Tampering(make=_script("mkdir /opt/tools && echo x > /opt/tools/y"), found={"EP822": {"/opt/tools"}}),
    "a mode changed": Tampering(make=_script("chmod 755 /opt/env/pyvenv.cfg"), found=_FILES, says={"EP822": "pyvenv.cfg (mode 644 and 755)"}),
    "a link turned": Tampering(make=_script("ln -sf /usr/bin/../bin/python3 /opt/env/bin/python3"), found=_FILES, says={"EP822": "link to /usr/bin/python3 and"}),
    "the baked snapshot exchanged": Tampering(
        make=_script(f"echo ' ' >> {labels.SNAPSHOT}"),
        found={"EP825": {labels.SNAPSHOT_DIGEST}},
    ),
    "the baked lock exchanged": Tampering(
        make=lambda shop, pair, name: shop.commit(pair.infer, {labels.LOCK[1:]: lock_text({**PACKAGES, "alpha": ("1.1", {})})}, name),
        found={"EP202": {"alpha"}, "EP822": {labels.RECORDS}, "EP825": {labels.LOCK_DIGEST}, "EP826": {"requirements.lock"}},
        says={"EP826": "were built from different locks: alpha 1.0 → 1.1"},
    ),
    "the records removed": Tampering(
        make=_script(f"rm -r {labels.RECORDS}"),
        found={"EP822": {labels.RECORDS}, "EP829": {"IMAGE"}},
        says={"EP829": f"IMAGE has no {labels.LOCK}, {labels.SNAPSHOT}"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_is_found_and_nothing_else(workshop: Workshop, pair: Pair, name: str) -> None:
    tampering = TAMPERINGS[name]
    image = tampering.make(workshop, pair, f"{PREFIX}-tampered")
    outcome = verify(pair.train, image)
    expected = {code: {image if subject == "IMAGE" else subject for subject in subjects} for code, subjects in tampering.found.items()}
    assert outcome.codes == expected, "\n".join(f"{item.code} {item.subject}: {item.what}" for item in outcome.report.findings)
    for code, text in tampering.says.items():
        assert text.replace("IMAGE", image).replace("TRAIN", pair.train) in outcome.what(code)
    assert outcome.code == 1
    assert not any(note.startswith("identical") for note in outcome.report.notes)
    assert "hf_abc" not in outcome.out


def test_another_base(workshop: Workshop, pair: Pair) -> None:
    base = workshop.commit(workshop.base, {"usr/lib/libnew.so": b"x"}, f"{PREFIX}-base2")
    other = workshop.build(f"{PREFIX}-other-base", role="infer", base=base)
    outcome = verify(pair.train, other)
    assert outcome.codes == {"EP821": {"base image"}, "EP822": {"/"}}
    assert f"/usr/lib/libnew.so (only in {PREFIX}-other-base)" in outcome.what("EP822")
    assert outcome.code == 1


def test_a_user_site_is_found_in_any_home_and_weighs_less_where_it_is_shut_out(workshop: Workshop, pair: Pair) -> None:
    place = f"home/app/.local/lib/python{workshop.python}/site-packages"
    files = {f"{place}/{path}": data for path, data in wheel_files("alpha", "9.9", {"alpha/__init__.py": b""}).items()}
    shut = workshop.commit(pair.infer, files, f"{PREFIX}-user-site")
    outcome = verify(pair.train, shut)
    assert outcome.codes == {"EP822": {"/"}}
    assert f"alpha in /{place}; PYTHONNOUSERSITE keeps them out" in outcome.what("EP827")
    config = {"Env": ["HOME=/home/app", "PYTHONNOUSERSITE="]}
    leaking = workshop.commit(shut, {}, f"{PREFIX}-user-site-open", config=config)
    outcome = verify(pair.train, leaking)
    # Whether Python then takes the user's copy depends on the environment being a venv, which shuts user sites out by itself.
    assert outcome.codes["EP827"] == {f"/{place}", "PYTHONNOUSERSITE"}
    assert outcome.code == 1


def test_a_fault_that_both_images_share_is_found_by_their_own_records(workshop: Workshop, pair: Pair) -> None:
    """What is tampered with in a layer that both stand on is no difference between them."""
    train = workshop.commit(pair.train, {}, f"{PREFIX}-both-train", script=f"echo 'B = 2' >> /{workshop.site}/alpha/core.py")
    infer = workshop.relabel(train, f"{PREFIX}-both-infer", **{labels.ROLE: "infer"})
    outcome = verify(train, infer)
    assert outcome.codes == {"EP208": {"alpha"}, "EP824": {train, infer}, **_ENVIRONMENT_LABEL}
    assert outcome.code == 1


def test_a_lock_newer_than_the_images(pair: Pair, tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_bytes(lock_text({**PACKAGES, "speculators": ("0.7.1", {}), "delta": ("1", {})}))
    outcome = verify(pair.train, pair.infer, "--lock", str(lock))
    assert outcome.codes == {"EP201": {"delta"}, "EP202": {"speculators"}, "EP826": {pair.train, pair.infer}}
    assert "differs in delta absent → 1, speculators 0.7.0 → 0.7.1" in outcome.what("EP826")
    assert outcome.code == 1
    # Other hashes under the same versions are another lock too.
    lock.write_bytes(lock_text().replace(b"sha256:0", b"sha256:1"))
    outcome = verify(pair.train, pair.infer, "--lock", f"train={lock}")
    assert outcome.codes == {"EP826": {pair.train}}
    assert "alpha 1.0 (other hashes or markers)" in outcome.what("EP826")


def test_roles_that_differ_as_their_stack_declares(workshop: Workshop, pair: Pair) -> None:
    declared = STACK + b"roles:\n  train: the trainer needs gamma\n"
    more = {**PACKAGES, "gamma": ("3", {"gamma.py": b""})}
    train = workshop.build(f"{PREFIX}-role-train", packages=more, stack=declared)
    infer = workshop.build(f"{PREFIX}-role-infer", role="infer", stack=declared)
    outcome = verify(train, infer)
    assert outcome.code == 0, outcome.out
    assert outcome.codes == {}
    assert {item.code for item in outcome.report.findings if item.declared} >= {"EP204", "EP822", "EP826"}
    assert outcome.report.notes[0] == "different as declared: the trainer needs gamma"
    # The same pair without the declaration.
    undeclared = workshop.build(f"{PREFIX}-role-silent", role="infer")
    assert verify(train, undeclared).codes.keys() >= {"EP822", "EP826"}


def test_what_the_build_accepted_is_accepted_and_a_tampered_list_of_it_hides_nothing(workshop: Workshop, pair: Pair) -> None:
    accepted = b"version: 1\nignore:\n  - {code: EP208, subject: alpha, reason: known}\n"
    train = workshop.build(f"{PREFIX}-accept", stack=STACK, more={labels.SPEC_FILE[1:]: accepted, f"{workshop.site}/alpha/core.py": b"def value():\n    return 3\n"})
    outcome = verify(train, workshop.relabel(train, f"{PREFIX}-accept-infer", **{labels.ROLE: "infer"}))
    assert outcome.code == 0, outcome.out
    assert [item.code for item in outcome.report.findings if item.ignored] == ["EP208"]
    assert outcome.report.notes[0].startswith("identical: ")
    forged = workshop.commit(pair.infer, {labels.SPEC_FILE[1:]: accepted}, f"{PREFIX}-forged", script=f"echo 'B = 2' >> /{workshop.site}/alpha/core.py")
    assert verify(pair.train, forged).codes == {"EP208": {"alpha"}, "EP822": {"/opt/env", labels.RECORDS}, "EP824": {forged}, **_ENVIRONMENT_LABEL}


def test_an_image_that_says_nothing_of_itself_can_still_be_compared(workshop: Workshop, pair: Pair) -> None:
    bare = f"{pair.train}-unlabelled"
    outcome = verify(pair.train, bare)
    assert outcome.codes == {"EP829": {bare}}
    assert f"{bare} has no {labels.SNAPSHOT}, {labels.LOCK_DIGEST}, {labels.SNAPSHOT_DIGEST}, " in outcome.what("EP829")


def test_what_cannot_be_read_is_one_sentence(workshop: Workshop, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: int, *words: str) -> str:
        outcome = run("verify", *words)
        assert (outcome.code, outcome.out) == (code, "")
        assert outcome.err.count("\n") == 1
        return outcome.err

    assert "envspec-no-such: No such image" in refused(3, pair.train, "envspec-no-such")
    assert "is not the name of an image" in refused(2, pair.train, "--privileged=x;y".replace("--", "a;"))
    assert "cannot read" in refused(2, pair.train, "--lock", str(tmp_path / "absent.lock"))
    assert "--timeout 0: give a number of seconds above 0" in refused(2, pair.train, "--timeout", "0")
    damaged = workshop.commit(pair.train, {labels.SNAPSHOT[1:]: b"{"}, f"{PREFIX}-damaged")
    assert f"{labels.SNAPSHOT} in {damaged} is not a snapshot: it is not valid JSON" in refused(2, damaged)
    damaged = workshop.commit(pair.train, {labels.STACK_FILE[1:]: b"version: 2\n"}, f"{PREFIX}-damaged")
    assert f"{damaged}:{labels.STACK_FILE}:1: version: expected 1, found 2" in refused(2, damaged)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert "no container engine answers" in refused(3, pair.train)


def test_labels_of_images_are_unique() -> None:
    assert [image.label for image in named_images(["image:a", "b:1"])] == ["a", "b:1"]
    assert [image.label for image in named_images(["a", "image:a"])] == ["train=a", "infer=a"]
    assert [image.label for image in named_images(["a", "a", "b"])] == ["1=a", "2=a", "3=b"]
