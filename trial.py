"""Two candidate speed-ups of the training step on a GPU beside what was before: ``OUT=folder python trial.py``.

BASE is the source in NEM_BASE (another checkout's ``src``), the rest this checkout's with NEM_TRIAL as named. One
process each, one after the other; on an H200 no more than 110 s in all. NEM_TOY=1 runs tiny steps on a CPU, in Triton's
interpreter. A line for each step is printed and appended to $OUT/trial.json; kernels are in $OUT/profile.txt.

Predictions, written before any measurement, in ms of a step (BASE as expected in brackets):

| step                                | pad          | pdl          | both         | no switch        |
| ----------------------------------- | ------------ | ------------ | ------------ | ---------------- |
| flying shapes K=5, bf16 (5.7)       | 5.4 (-5 %)   | 5.5 (-4 %)   | 5.2 (-9 %)   | within 1 %       |
| flying shapes K=5, TF32 (8.1)       | as BASE: 100 numbers of 4 bytes are aligned | 7.9 (-2 %) | 7.9 | within 1 % |
| R-NEM, B=16 K=8, bf16 (16)          | 14.2 (-11 %) | 15.4 (-4 %)  | 13.6 (-15 %) | within 1 %       |
| R-NEM, B=64 K=5, bf16 (23.5)        | 21.5 (-8 %)  | 23.1 (-2 %)  | 21.1 (-10 %) | within 1 %       |
| RNN-EM, B=16 K=8, bf16 (11)         | 10.4 (-5 %)  | 10.6 (-4 %)  | 10.0 (-9 %)  | within 1 %       |

These are against "no switch"; where BASE lacks the kernels of commit 2356ef7, that column holds their effect as well,
and nothing is predicted for it here. Losses: as BASE's to 1e-3 in bf16, 1e-4 in TF32.

Likeliest to be wrong: pdl. A kernel that waits at once saves only its own start, about 1 us, and only behind a kernel;
if a recording refuses it after a memset, the step falls back to no graph, which the column "graph" tells.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

TOY = os.environ.get("NEM_TOY") == "1"
TOTAL = 900.0 if TOY else 104.0  # seconds
LEAST = 5.0  # seconds under which no other setting is begun
ROOT = Path(__file__).resolve().parent
OUT = Path(os.environ.get("OUT", "trial-out")).resolve()
FLYING = ("flying-shapes", ["training.components=5"], 64)
BALLS = ["data.most_objects=8", "training.steps=30", "training.components=8"]
HALF = ["training.precision=bf16"]
SETTINGS = {  # name: preset, settings, batch, more settings of the training, relative tolerance of the losses
    "flying": (*FLYING, HALF, 2e-2),
    "flying-tf32": (*FLYING, [], 2e-3),
    "rnem-16-8": ("bouncing-balls", BALLS, 16, HALF, 2e-2),
    "rnnem-16-8": ("bouncing-balls-rnn-em", BALLS, 16, HALF, 2e-2),
    "rnem-64-5": ("bouncing-balls", [*BALLS, "training.components=5"], 64, HALF, 2e-2),
}
PLAN = {  # the most wanted first
    "BASE": ("flying", "rnem-16-8", "rnem-64-5", "flying-tf32", "rnnem-16-8"),
    "": ("flying", "rnem-16-8", "rnem-64-5", "rnnem-16-8", "flying-tf32"),
    "pad": ("rnem-16-8", "flying", "rnem-64-5", "rnnem-16-8"),
    "pad,pdl": ("flying", "rnem-16-8", "rnem-64-5", "rnnem-16-8", "flying-tf32"),
    "pdl": ("flying", "rnem-16-8"),
}
if TOY:
    PLAN = {variant: ("rnem-16-8", "rnnem-16-8") if "pad" in variant else ("rnem-16-8",) for variant in PLAN}
    PLAN["BASE"] = ("rnem-16-8", "rnnem-16-8")
PROFILED = {"BASE": ("flying", "rnem-16-8"), "pad,pdl": ("flying", "rnem-16-8")}


def child(variant: str, names: list[str]) -> None:
    """Measures the settings in this process; a line of JSON for each. Starts when a line with its end arrives."""
    import torch

    import neural_em
    from benchmarks import bench_training
    from benchmarks.timing import timed
    from neural_em.training import device as devices

    print("READY", flush=True)
    end = float(sys.stdin.readline())
    device = devices.choose() if not TOY else torch.device("cpu")
    if TOY:
        from neural_em.model.fast import kernels, twin

        twin.kernels_for = lambda like: kernels
        torch.set_num_threads(1)
    bench_training.SAMPLES = 8 if TOY else 128
    kept = {}
    with devices.products("auto", device):
        for name in names:
            start = time.time()
            if end - start < LEAST + (4 if variant in PROFILED else 0):  # a profile needs time as well
                print(json.dumps({"variant": variant, "setting": name, "skipped": "no time"}), flush=True)
                continue
            base, settings, batch, more, _ = SETTINGS[name]
            row = {"variant": variant, "setting": name, "source": neural_em.__file__}
            try:
                bench_training.BATCH = 2 if TOY else batch
                toy = ["training.components=3", "training.steps=1"]
                if TOY:
                    toy += ["data.objects=1", "data.most_objects=1", "data.frames=4"]
                    toy += [f"{part}.{side}=16" for part in ("data", "model") for side in ("height", "width")]
                experiment, data = bench_training.setting(base, [*settings, *(toy if TOY else [])], device)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    step = bench_training.stepper(experiment, data, device, [] if TOY else more)
                    row["losses"] = [float(step()) for _ in range(2 if TOY else 3)]
                row["ready_s"] = round(time.time() - start, 2)
                (held,) = (cell.cell_contents for cell in step.__closure__ if hasattr(cell.cell_contents, "network"))
                row["m_step"] = type(held.network.fast[0]).__name__
                said = [str(each.message)[:300] for each in caught]
                row["graph"] = not TOY and not any("no CUDA graph" in text for text in said)
                row["warnings"] = said[:3]
                repeat, rounds = (1, 1) if TOY else (15, 3)
                warm = step if not TOY else lambda: None  # the interpreter takes seconds for a step
                each = [1000 * timed(warm, device, repeat) for _ in range(rounds)]
                row["ms"], row["ms_all"] = round(statistics.median(each), 4), [round(ms, 4) for ms in each]
                kept[name] = step
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"[:600]
                row["where"] = traceback.format_exc()[-1500:]
            print(json.dumps(row), flush=True)
        for name in PROFILED.get(variant, ()):
            if name in kept and end - time.time() > 3:
                try:
                    profile(variant, name, kept[name], device)
                except Exception as error:
                    print(json.dumps({"variant": variant, "setting": name, "profile": repr(error)[:300]}), flush=True)
    print("DONE", flush=True)
    os._exit(0)  # without the time that graphs take to go


def profile(variant: str, name: str, step: object, device: object) -> None:
    """Appends the kernels that take the most time to profile.txt, of a step and in order."""
    import torch
    from torch.profiler import ProfilerActivity

    cuda = device.type == "cuda"
    steps = 3 if cuda else 1
    kinds = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds) as watched:
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize()
    rows = []
    for each in watched.key_averages():
        taken = each.self_device_time_total if cuda else each.self_cpu_time_total
        rows.append((taken / steps / 1000, each.count / steps, each.key))
    rows.sort(reverse=True)
    total, count = sum(row[0] for row in rows), sum(row[1] for row in rows)
    with (OUT / "profile.txt").open("a") as file:
        file.write(f"\n{variant or 'no switch'}: {name}: kernels {count:.0f}, {total:.3f} ms of a step\n")
        for taken, times, key in rows[:25]:
            file.write(f"{taken:8.3f} ms {times:6.0f} x {1000 * taken / max(times, 1e-9):8.1f} us  {key[:150]}\n")
    print(json.dumps({"variant": variant, "setting": name, "profile": "written"}), flush=True)


def begun(variant: str) -> subprocess.Popen:
    """The variant's process, which imports what it needs and then waits for its turn."""
    source = os.environ.get("NEM_BASE") if variant == "BASE" else str(ROOT / "src")
    if variant == "BASE" and not (source and (Path(source) / "neural_em").is_dir()):
        print(f"NEM_BASE={source!r} has no neural_em: BASE is this source without switches", flush=True)
        source = str(ROOT / "src")
    environment = {**os.environ, "OUT": str(OUT), "NEM_TRIAL": "" if variant == "BASE" else variant,
                   "PYTHONPATH": os.pathsep.join([str(Path(source).resolve()), str(ROOT)]),
                   "PYTHONUNBUFFERED": "1"}  # fmt: skip
    if TOY:
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "trial.py"), "child", variant, *PLAN[variant]]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=(OUT / f"stderr-{list(PLAN).index(variant)}.txt").open("w"),
    )  # fmt: skip


def main() -> None:
    start = time.time()
    OUT.mkdir(parents=True, exist_ok=True)
    processes = {variant: begun(variant) for variant in PLAN}  # imports take place side by side, nothing that is timed
    losses: dict[str, list[float]] = {}
    times: dict[tuple[str, str], float] = {}
    file = (OUT / "trial.json").open("a")
    left = dict(PLAN)
    for variant, process in processes.items():
        remaining = start + TOTAL - time.time()
        work = sum(len(names) for names in left.values())
        names = left.pop(variant)
        share = remaining if not left else min(remaining, 1.25 * remaining * len(names) / work + 2)
        end = time.time() + share
        print(f"-- {variant or 'no switch'}: {share:.0f} s of {remaining:.0f}", flush=True)
        try:
            if remaining < LEAST:
                continue
            process.stdin.write(f"{end}\n")
            process.stdin.flush()
            killer = threading.Timer(min(share + 6, start + TOTAL + 4 - time.time()), process.kill)
            killer.start()
            for line in process.stdout:
                if line.startswith("DONE"):
                    break
                if not line.startswith("{"):
                    continue
                row = json.loads(line)
                compare(row, losses, times)
                row["at_s"] = round(time.time() - start, 1)
                file.write(json.dumps(row) + "\n")
                file.flush()
            killer.cancel()
        except Exception as error:
            print(f"   {variant}: {error!r}", flush=True)
        finally:
            process.kill()
            process.wait()
    for variant in PLAN:
        path = OUT / f"stderr-{list(PLAN).index(variant)}.txt"
        text = path.read_text().strip()
        path.unlink()
        if text:
            print(f"-- stderr of {variant or 'no switch'}: {text[-600:]}", flush=True)
    print(f"{time.time() - start:.0f} s in all", flush=True)


def compare(row: dict, losses: dict[str, list[float]], times: dict[tuple[str, str], float]) -> None:
    """Prints a row, beside what BASE had."""
    variant, name = row["variant"], row["setting"]
    text = f"   {variant or 'no switch':9} {name:12}"
    if "ms" in row:
        times[variant, name] = row["ms"]
        if variant == "BASE":
            losses[name] = row["losses"]
        base, there = times.get(("BASE", name)), losses.get(name)
        text += f" {row['ms']:8.3f} ms"
        if base:
            row["against_base"] = row["ms"] / base - 1
            text += f" {100 * row['against_base']:+6.1f} % of BASE"
        plain = times.get(("", name))
        if plain and variant not in ("BASE", ""):
            row["against_no_switch"] = row["ms"] / plain - 1
            text += f" {100 * row['against_no_switch']:+6.1f} % of no switch"
        if there:
            off = max(abs(a - b) / abs(b) for a, b in zip(row["losses"], there, strict=True))
            row["losses_off"], row["losses_agree"] = off, off <= SETTINGS[name][4]
            text += f"  losses off by {off:.1e} ({'agree' if row['losses_agree'] else 'DIFFER'})"
        ours = ", ".join(f"{loss:.6g}" for loss in row["losses"])
        base_text = ", ".join(f"{loss:.6g}" for loss in there) if there else "none"
        text += f"  {row['m_step']}  graph {row['graph']}  ready {row['ready_s']} s  losses [{ours}] BASE [{base_text}]"
        text += f"  {row['warnings']}" if row["warnings"] else ""
    else:
        text += " " + " ".join(f"{key}: {row[key]}" for key in ("skipped", "error", "profile") if key in row)
    print(text, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], sys.argv[3:])
    else:
        main()
