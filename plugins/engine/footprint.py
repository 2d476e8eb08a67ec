"""What running a model takes, of the device and of the host, of disk and of time; known without a framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.engine import Usage
from pipeline.mesh import Mesh, Placement, Step
from pipeline.planning.mesh_costs import weights_nbytes
from pipeline.planning.rates import cores
from pipeline.planning.reading import bytes_read
from pipeline.stage import Checkpoint, Footprint
from pipeline.tensors.spec import TensorSpec
from plugins.engine.sizes import BUCKETS, LOGITS_NBYTES, SMALLEST_CACHE, power_of_two
from plugins.engine.steps import Activations, rows_of_each, steps, temporary_nbytes
from plugins.models.device import cache_nbytes, keys_of

# Beside the weights; measured on CPU with pipeline.testing.peak, without kept programs: the main job takes 574 MiB in
# all (planned with this: 1009), and evaluating SmolLM2-135M with 257 MiB of bf16 weights 822 MiB (1370).
HOST_NBYTES = 480 << 20  # JAX, Flax and compiling
# Compiling, for each layer, as they are unrolled: evaluating toys of 24, 48 and 96 layers, as they are and in mxfp4,
# with next to no weights, took 675, 939 and 1475 MiB.
PROGRAM_NBYTES = 11 << 20
SCORES_NBYTES = 6 * LOGITS_NBYTES  # logits, log probabilities and their differences
# Native products of a prompt, for each thread and one more: activations in order (ORDERED of native/src/gemm.cc), and
# what a thread works in.
PRODUCT_NBYTES = (8 << 20) + (1 << 20)
ACTIVATION_NBYTES = {"bf16": 2, "f32": 4}
TOKENIZING_NBYTES = 170  # for each byte of a text (measured: 1.8 GB for 11 MB of text)
ARCHIVE_NBYTES = 64 << 10  # what a baseline's archive has beside its arrays, and its record


@dataclass(frozen=True, slots=True)
class Running:
    """A model as an engine's options would run it.

    Attributes:
        weights_nbytes: of the weights on one device.
        ignored: tensors that the model does not read, with the reasons.
        mesh: the devices.
        placement: how weights lie over them; None: there is one.
        dtype: of activations.
        cache: dtype of the KV cache.
        on_host: whether the devices' memory is the host's.
        native: whether native kernels run attention and experts.
    """

    weights_nbytes: int
    ignored: Mapping[str, str]
    mesh: Mesh
    placement: Placement | None
    dtype: Literal["bf16", "f32"]
    cache: Literal["bf16", "f32", "fp8", "int8"]
    on_host: bool
    native: bool

    def footprint(self, checkpoint: Checkpoint, usage: Usage) -> Footprint:
        """Of loading it and of what it is then asked; `inputs` are whose tokenizer it has to say."""
        specs, mesh, p = checkpoint.store.specs, self.mesh, self.placement
        cache = self._cache_nbytes(checkpoint, usage) if usage.generates else 0
        weights = self.weights_nbytes
        if p is not None:
            weights = weights_nbytes(p.mesh, p.parameters, p.specs, p.layouts)
        device = weights + cache
        # Scoring, after loading: the baseline's head is there as it is held, a packed one as fp32.
        vocab = checkpoint.config.get("vocab_size")
        heads = [s for s in specs.values() if s.shape[:1] == (vocab,)]
        head = max((s.nbytes if s.scheme is None else 4 * s.size for s in heads), default=0)
        hidden = max((s.shape[-1] for s in heads), default=0)
        state = ACTIVATION_NBYTES[self.dtype] * hidden  # of a token: written for a baseline, and read to compare with
        compared = head + 2 * max(usage.keeps, default=0) * state
        # Activations of what goes through a layer at once: what comes in and out of its widest matrix, as fp32.
        wide = max((sum(s.shape[-2:]) for n, s in specs.items() if ".layers." in n and len(s.shape) > 1), default=0)
        exchanged: tuple[Step, ...] = ()
        reads: tuple[int, ...] = ()
        temporary = 0
        if p is not None:
            exchanged = tuple(steps(p, usage, ACTIVATION_NBYTES[self.dtype]))
            reads = tuple(bytes_read(checkpoint.store, p.mesh, p.parameters, p.layouts, p.mesh.hosts))
            chosen, attends = (_number(checkpoint, f"num_{n}") for n in ("experts_per_tok", "attention_heads"))
            has = Activations(ACTIVATION_NBYTES[self.dtype], chosen, attends, self.native)
            temporary = temporary_nbytes(p, usage, exchanged, has)
        on_devices = mesh.size * (device + temporary) if self.on_host else 0
        kind = "on the host" if self.on_host else "accelerator"
        axes = [f"{axis}={n}" for axis, n in mesh.axes.items() if n > 1]
        return Footprint(
            device,
            mesh.processes * self._process_nbytes(specs, usage, compared, wide) + on_devices,
            ignored=self.ignored,
            cache_nbytes=cache,
            disk_nbytes=sum(n * state + ARCHIVE_NBYTES for n in usage.keeps)
            + (head + ARCHIVE_NBYTES) * bool(usage.keeps),
            moved_nbytes=weights * usage.tokens,
            rate=" ".join([kind, self.dtype, *axes, *sorted({s.encoding for s in specs.values()})]),
            devices=mesh.size,
            temporary_nbytes=temporary,
            steps=exchanged,
            host_reads=reads,
        )

    def _process_nbytes(self, specs: Mapping[str, TensorSpec], usage: Usage, compared: int, wide: int) -> int:
        """Of memory of one process, beside what is on its devices.

        Args:
            compared: bytes of what is compared with.
            wide: numbers of a token in a layer's widest matrix.
        """
        largest = max((s.nbytes for s in specs.values()), default=0)
        layers = len({n.partition(".layers.")[2].partition(".")[0] for n in specs if ".layers." in n})
        activations = usage.batch * min(usage.length, BUCKETS[-1]) * 4 * wide
        found = HOST_NBYTES + layers * PROGRAM_NBYTES + TOKENIZING_NBYTES * usage.text_nbytes
        found += max(2 * largest, SCORES_NBYTES + compared + activations)
        found += _attended_nbytes(specs, usage) if usage.generates and self.on_host else 0
        return found + ((cores() + 1) * PRODUCT_NBYTES if self.on_host else 0)

    def _cache_nbytes(self, checkpoint: Checkpoint, usage: Usage) -> int:
        """Of the KV cache on each device, in the sizes that programs are compiled for."""
        batch, length = rows_of_each(self.mesh, usage), power_of_two(usage.length, SMALLEST_CACHE)
        ways = self.mesh.ways(self.mesh.over("kv_heads"))
        return cache_nbytes(checkpoint.store.specs, checkpoint.config, batch, length, self.cache, ways)


def _number(checkpoint: Checkpoint, name: str) -> int:
    found = checkpoint.config.get(name)
    return found if isinstance(found, int) else 0


def _attended_nbytes(specs: Mapping[str, TensorSpec], usage: Usage) -> int:
    """Of the keys and values of one layer as fp32, which attention copies out of the cache on CPUs (measured: with
    256 MiB and 1 GiB of cache, in two layers, 796 and 1794 MiB)."""
    slots = power_of_two(usage.batch) * power_of_two(usage.length, SMALLEST_CACHE)
    return 2 * slots * 4 * max(keys_of(specs).values(), default=0)
