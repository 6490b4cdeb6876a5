"""The real vLLM on a CPU as a line-by-line server of many drafters, as a script: one JSON command a line in, one JSON answer a line out.

``{"load": {"target", "drafter", "steps", "dtype"}}`` starts an engine with that drafter; the one before is gone with its process.
``{"row": [token ids], "max_tokens": 2}`` asks for one row: first token, and the accepted run by the difference of the counters.
``{"requests": [[token ids], …], "max_tokens": […]}`` serves requests greedily and answers what the counters counted.

vLLM is imported once and every engine lives in a fork of that process: a load takes seconds instead of a minute.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from vllm_server import difference, read

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


def say(answer: dict[str, Any]) -> None:
    print("ANSWER " + json.dumps(answer), flush=True)


def next_line() -> str:
    """One line of the input, and not a byte more: what follows may be for the parent or for the next engine."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def engine(job: dict[str, Any]) -> None:
    """Serve one drafter until the next ``load`` or the end of the input; which is left to the parent."""
    import vllm
    from vllm import LLM, SamplingParams

    steps = job["steps"]
    llm = LLM(
        model=job["target"], dtype=job.get("dtype", "float32"), max_model_len=256, enforce_eager=True, disable_log_stats=False,
        distributed_executor_backend="uni", disable_custom_all_reduce=True, max_num_seqs=4,
        speculative_config={"method": "eagle3", "model": job["drafter"], "num_speculative_tokens": steps},
    )  # fmt: skip

    def serve(prompt: list[int], count: int) -> list[int]:
        parameters = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        return list(llm.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)[0].outputs[0].token_ids)

    say({"ready": vllm.__version__})
    before = read(llm)
    while line := next_line():
        command = json.loads(line)
        if "end" in command:
            return
        if "row" in command:
            tokens = serve(command["row"], command["max_tokens"])
            after = read(llm)
            moved = difference(after, before, steps)
            say({"first_token": tokens[0], "drafts": moved["drafts"], "accepted": moved["accepted"]})
        else:
            outputs = [serve(p, n) for p, n in zip(command["requests"], command["max_tokens"], strict=True)]
            after = read(llm)
            say({"outputs": outputs, **difference(after, before, steps)})
        before = after


def main() -> None:
    os.environ.update(SETTINGS)
    import vllm  # noqa: F401

    while line := next_line():
        job = json.loads(line)["load"]
        child = os.fork()
        if child == 0:
            try:
                engine(job)
            except BaseException as error:
                say({"failed": f"{type(error).__name__}: {error}"})
                os._exit(1)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
