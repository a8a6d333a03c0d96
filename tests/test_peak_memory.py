"""The peak memory of a stage, which must not count for a later one."""

import mmap

from tasks.peak_memory import peak_memory, reset_peak


def test_each_stage_has_a_peak_of_its_own() -> None:
    reset_peak()
    before = peak_memory("rollout")["memory/rollout_gib"]
    size = 2**28
    held = mmap.mmap(-1, size)  # fresh pages: what an allocator hands out may have been resident before
    for _ in range(256):
        held.write(b"x" * (size // 256))
    (grown,) = peak_memory("rollout").values()  # one number where there is no GPU
    assert 0.9 < (grown - before) * 2**30 / size < 1.5
    held.close()
    assert peak_memory("rollout")["memory/rollout_gib"] > grown - 0.1 * size / 2**30  # the kernel counts in batches
    reset_peak()
    assert peak_memory("train")["memory/train_gib"] < grown - 0.9 * size / 2**30
