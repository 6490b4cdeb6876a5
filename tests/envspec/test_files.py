"""Writing files whole, whatever stands in their place, and asking about paths that no file system takes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from envspec.files import exists, is_dir, is_file, within, write_all, write_whole


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("before")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "dangling").symlink_to("new")
    write_all([(tmp_path / "link", "after"), (tmp_path / "dangling", "made")])
    assert [(tmp_path / name).is_symlink() for name in ("link", "dangling")] == [True, True]
    assert [(tmp_path / name).read_text() for name in ("target", "new")] == ["after", "made"]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_whole(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a device")
def test_a_device_stays_one(tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no device can be made or opened here: {error}")
    write_whole(device, "gone")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_file_that_is_standard_output_keeps_what_is_printed(tmp_path: Path) -> None:
    program = "from pathlib import Path; from envspec.files import write_whole; print('a', flush=True); write_whole(Path('/proc/self/fd/1'), 'b\\n'); print('c')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "a\nb\nc\n"


def test_of_several_files_all_or_none_are_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before")
    with pytest.raises(OSError, match="No such file") as caught:
        write_all([(tmp_path / "a", "after"), (tmp_path / "missing" / "b", "")])
    assert caught.value.filename == str(tmp_path / "missing" / "b")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before")]


def test_a_link_to_itself_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "loop", "")
    assert within({"one": tmp_path / "loop"}, [tmp_path / "other"]) is None


def test_a_name_that_just_fits_can_be_written(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 255), "whole")
    assert (tmp_path / ("x" * 255)).read_text() == "whole"


@pytest.mark.parametrize("path", ["x" * 300, "a\0b", "x/" * 3000])
def test_a_path_that_cannot_be_is_not_there(path: str) -> None:
    assert (exists(path), is_file(path), is_dir(path)) == (False, False, False)


def test_one_file_is_known_under_every_name(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    (tmp_path / "link").symlink_to("lock")
    assert within({"a": tmp_path / "new", "b": tmp_path / "link"}, [tmp_path / "." / "lock"]) == "b"
