"""What builders print, as recorded from real ones, and the sentence that comes of it."""

from __future__ import annotations

import pytest

from envspec.images.engine import EngineError
from envspec.images.failures import CheckFailed, explain
from envspec.images.progress import Progress

HEAD = """\
#1 [internal] load build definition from Dockerfile
#1 DONE 0.1s
#9 [base 1/2] FROM docker.io/library/small-base
#9 CACHED
#12 [stack 1/1] RUN --mount=type=bind,source=steps/stack.sh,target=/run/steps/stack.sh sh /run/steps/stack.sh
"""


def fed(text: str, told: list[str] | None = None) -> Progress:
    progress = Progress(tell=(told if told is not None else []).append)
    for line in text.splitlines():
        progress.feed(line + "\n")
    return progress


def test_each_step_worth_a_line_gets_one() -> None:
    told: list[str] = []
    fed(HEAD + "#12 0.4 Installed 4 packages in 1s\n#12 DONE 127.3s\n#13 [tools 5/5] RUN [/opt/tools/bin/envspec images self-check]\n#13 CACHED\n", told)
    assert told == ["environment from the lock: 127 s", "check against the lock: as before"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("#12 3.1 error: failed to write: No space left on device (os error 28)\n#12 ERROR: exit code: 2", r"the engine's disk is full while making: environment from the lock; free space"),
        (
            ("#12 1.2   × Failed to download `packaging==26.4`\n#12 1.2   ╰─▶ Hash mismatch for `packaging==26.4`\n#12 1.2 \n#12 1.2       Expected:\n"
            "#12 1.2         sha256:aa11\n#12 1.2 \n#12 1.2       Computed:\n#12 1.2         sha256:bb22\n#12 ERROR: exit code: 1"),
            r"hash mismatch: packaging==26\.4 from the index has sha256:bb22, the lock holds sha256:aa11; the file was changed",
        ),
        ("#12 1.0 envspec-build: the base has Python 3.9.2, the lock is for Python 3.12; take another base\n#12 ERROR: x", r"^the base has Python 3\.9\.2, the lock is for Python 3\.12; take another base$"),
        ("#12 9.0 error: Request failed\n#12 9.0   error sending request for url (https://u:secret@index.example/simple/)\n#12 ERROR: x", r"the network failed while making: environment from the lock: error sending request for url \(https://index"),
        ("#12 ERROR: no active session for k86x: context deadline exceeded", r"the builder and its client lost each other while making: environment from the lock, and again"),
        ("#12 9.0 something unheard of\n#12 ERROR: executor failed running", r"the build failed while making: environment from the lock: something unheard of$"),
    ],
)
def test_a_failed_step_becomes_one_sentence(said: str, sentence: str) -> None:
    error = explain(fed(HEAD + said), "small-base", offline=False)
    assert isinstance(error, EngineError)
    with pytest.raises(EngineError, match=sentence):
        raise error
    assert "\n" not in str(error)
    assert "secret" not in str(error)


def test_a_base_that_is_not_found() -> None:
    text = "#2 [internal] load metadata for registry.example/no:1\n#2 ERROR: registry.example/no:1: not found\nfailed to solve: registry.example/no:1: failed to resolve source metadata for registry.example/no:1: not found\n"
    assert str(explain(fed(text), "registry.example/no:1", offline=False)).startswith("the base image registry.example/no:1 cannot be had: ")


def test_the_checks_findings_are_kept_as_they_were_printed() -> None:
    error = explain(fed(HEAD + "#12 DONE 1s\n#13 [tools 5/5] RUN [/opt/tools/bin/envspec images self-check]\n#13 2.1 EP201 numpy 2.4 is in the lock, not installed\n#13 2.1\n#13 ERROR: executor failed running [/opt/tools/bin/envspec images self-check]: exit code: 1"), "b", offline=True)
    assert isinstance(error, CheckFailed)
    assert (error.exit_code, error.report) == (1, "EP201 numpy 2.4 is in the lock, not installed")


@pytest.mark.parametrize(
    ("said", "status", "sentence"),
    [
        ("envspec: image: no answer within 4200 s", 3, r"^the check of what was built could not be done: image: no answer within 4200 s; nothing was tagged$"),
        ("", 137, r"could not be done: it was killed; is there enough memory\?"),
    ],
)
def test_a_check_that_could_not_be_done_is_not_one_that_found_something(said: str, status: int, sentence: str) -> None:
    error = explain(fed(HEAD + f"#12 DONE 1s\n#13 [tools 5/5] RUN [/opt/tools/bin/envspec images self-check]\n#13 2.1 {said}\n#13 ERROR: x: exit code: {status}"), "b", offline=True)
    with pytest.raises(EngineError, match=sentence):
        raise error


def test_buildahs_output_is_read_too() -> None:
    told: list[str] = []
    progress = fed("[3/6] STEP 4/4: RUN --mount=type=cache sh /run/steps/stack.sh\nenvspec-build: no Python\nError: building at STEP 'RUN': exit status 1\n", told)
    assert told == ["environment from the lock ..."]
    assert str(explain(progress, "b", offline=False)) == "no Python"
