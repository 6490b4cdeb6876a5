"""Starts a server for a draft model; the import that only some environments can satisfy is inside a function."""

import json
import sys


def draft_config(path: str) -> object:
    from speculators.models.eagle3.config import Eagle3SpeculatorConfig

    with open(path) as file:
        return Eagle3SpeculatorConfig(**json.load(file))


def main() -> None:
    config = draft_config(sys.argv[1])
    print(config)


if __name__ == "__main__":
    main()
