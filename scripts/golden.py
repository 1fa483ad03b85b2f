"""Numbers that a change of form must not change: `python scripts/golden.py > before.json`, and compare later.

Each is made through a public door: toy and engine trainings with their weights and events, networks grown by shipped
controllers and exported, an environment stepped in this process and over two workers, bench tables from shipped rows,
and the keys and curves of the control cache. Bit for bit on one machine; another CPU may differ.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
CLOCKS = ("second", "time", "memory", "run", "version", "device", "path")
"""Fields with these words in their names say how fast, where or by which version: they may differ."""


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def esper(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "esper", *arguments], check=True, capture_output=True, text=True
    ).stdout


def content(value: object) -> object:
    """A record without clocks, numbers to ten digits."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {
            name: content(part)
            for name, part in sorted(value.items())
            if not any(word in str(name) for word in CLOCKS)
        }
    return [content(part) for part in value] if isinstance(value, list) else value


def weights(tensors: Mapping[str, torch.Tensor]) -> str:
    parts = (f"{name} {tensor.numpy().tobytes().hex()}" for name, tensor in sorted(tensors.items()))
    return digest("\n".join(parts).encode())


def trained(folder: Path, *options: str) -> dict[str, object]:
    esper("train", "--run-directory", str(folder), "--run-name", "golden", "--quiet", *options)
    events = (folder / "golden" / "events.jsonl").read_text().splitlines()
    plain = json.dumps([content(json.loads(line)) for line in events])
    last = folder / "golden" / "checkpoints" / "last.pt"
    return {
        "weights": weights(torch.load(last, weights_only=True)["policy"]),
        "events": len(events),
        "content": digest(plain.encode()),
    }


def grown(folder: Path, case: str, controller: str) -> dict[str, object]:
    file = folder / f"{controller}.safetensors"
    said = json.loads(esper("grow", case, "--controller", controller, "--export", str(file), "--json"))
    return {"said": content(said), "export": weights(load_file(file))}


def stepped(workers: int) -> dict[str, object]:
    """Random legal growth in four hosts that really train."""
    import esper as package

    env = package.make_env("cpu", 4, workers=workers)
    observation, _ = env.reset(seed=3)
    rng, rewards = np.random.default_rng(0), []
    for _ in range(22):
        observation, reward, *_ = env.step(env.sample_legal(rng))
        rewards.append(reward)
    env.close()
    seen = b"".join(observation[name].tobytes() for name in sorted(observation))
    return {"rewards": digest(np.stack(rewards).tobytes()), "observation": digest(seen)}


def golden(folder: Path) -> dict[str, object]:
    cache = folder / "cache"
    os.environ["ESPER_CACHE"] = str(cache)
    small = ("--rounds", "2", "--num-envs", "4", "--num-minibatches", "2", "--run-telemetry", "debug")
    return {
        "toy": trained(folder / "toy", "--preset", "toy", "--rounds", "6", "--run-telemetry", "debug"),
        "cpu": trained(folder / "cpu", "--preset", "demo", *small),
        "cpu over workers": trained(folder / "workers", "--preset", "demo", "--workers", "2", *small),
        "grown": grown(folder, "mnist1d:shuffled=1.0", "cpu-v1"),
        "grown by a rule": grown(folder, "digits", "probe_and_keep"),
        "shifted": grown(folder, "shift:kind=shuffle,change=8,shuffled=1.0", "shift-v1"),
        "stepped": stepped(0),
        "stepped over workers": stepped(2),
        "table": {
            suite: digest(esper("bench", "table", str(ROOT / "benchmarks" / "evidence" / suite)).encode())
            for suite in ("cpu", "shift")
        },
        "controls": {
            path.stem: digest(path.read_bytes()) for path in sorted((cache / "controls").glob("*.json"))
        },
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(golden(Path(name)), indent=1))
