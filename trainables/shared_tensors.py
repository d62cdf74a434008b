"""Tensors that the ranks of a trial hold together, saved and loaded by torch.distributed.checkpoint (DCP).

DCP decides which rank saves and loads which part of a tensor, so that any layout can load what any other has saved. The
parts are plain values in the files of `trainables.checkpoints`: DCP's own files contain pickled objects, and reading
them would run code.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

Chunk = dict[str, Any]
"""A part of a tensor: `name`, the size of the `whole`, the part's `offsets` in it, and its `values` on the CPU."""


def chunks_of(tensors: Mapping[str, Tensor], *, alone: bool) -> list[Chunk]:
    """Return the parts that this rank saves; all ranks call this together, unless each has tensors `alone`.

    Of equal parts, the lowest rank saves its own.
    """
    # DCP calls the writer back with what this rank is to save; nothing reaches a file here.
    writer = _Writer()
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=True)
    with _one_process_is_intended():
        state_dict_saver.save(dict(tensors), storage_writer=writer, planner=planner, no_dist=alone)
    return writer.chunks


@contextmanager
def _one_process_is_intended() -> Iterator[None]:
    """Suppress DCP's warning that it works without a process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@dataclass(frozen=True, kw_only=True)
class SharedTensors:
    """Saved tensors, as parts from all ranks that saved them."""

    chunks: Sequence[Chunk]
    alone: bool

    def empty(self, name: str, like: Tensor | None) -> Tensor:
        """Return a tensor to load this one into, divided as `like`; of its size on the CPU, if `like` has another."""
        chunk = next(chunk for chunk in self.chunks if chunk["name"] == name)
        size, dtype = torch.Size(chunk["whole"]), chunk["values"].dtype
        if like is not None and size == like.shape:
            return torch.empty_like(like, dtype=dtype, requires_grad=False)
        return torch.empty(size, dtype=dtype)

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with this prefix."""
        return [name for name in dict.fromkeys(chunk["name"] for chunk in self.chunks) if name.startswith(prefix)]

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the saved values into these tensors, in place; all ranks call this together, unless `alone`."""
        if not tensors:
            return
        # DCP finds the parts that each rank needs, also if other ranks or another number of them saved.
        reader, planner = _Reader(self.chunks), DefaultLoadPlanner()
        with _one_process_is_intended():
            state_dict_loader.load(dict(tensors), storage_reader=reader, planner=planner, no_dist=self.alone)


class _Writer(StorageWriter):
    """Collects the parts that DCP has this rank write."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def reset(self, checkpoint_id: Any = None) -> None:
        self.chunks = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = []
        for item in plan.items:
            assert item.tensor_data is not None
            values = planner.resolve_data(item)
            assert isinstance(values, Tensor)
            # A copy, because a part may be a view of more memory, all of which would be saved.
            part = values.detach().to("cpu", copy=True)
            self.chunks.append(
                {
                    "name": item.index.fqn,
                    "whole": list(item.tensor_data.size),
                    "offsets": list(item.tensor_data.chunk.offsets),
                    "values": part,
                }
            )
            written.append(WriteResult(index=item.index, size_in_bytes=part.nbytes, storage_data=None))
        # DCP waits for a future, as if the parts were written in the background.
        future: Future[list[WriteResult]] = Future()
        future.set_result(written)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class _Reader(StorageReader):
    """Reads parts from memory."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, TensorStorageMetadata] = {}
        for chunk, part in zip(self._chunks, self._parts(), strict=True):
            known = tensors.setdefault(
                chunk["name"],
                TensorStorageMetadata(
                    properties=TensorProperties(dtype=chunk["values"].dtype),
                    size=torch.Size(chunk["whole"]),
                    chunks=[],
                ),
            )
            known.chunks.append(part)
        places = {MetadataIndex(chunk["name"], chunk["offsets"]): index for index, chunk in enumerate(self._chunks)}
        return Metadata(state_dict_metadata=dict(tensors), storage_data=places)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            values = self._chunks[self._places[item.storage_index]]["values"]
            # A rank may need only a part of what another rank saved as one.
            for axis, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                values = values.narrow(axis, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(values)
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True

    def _parts(self) -> Iterator[ChunkStorageMetadata]:
        for chunk in self._chunks:
            yield ChunkStorageMetadata(offsets=torch.Size(chunk["offsets"]), sizes=torch.Size(chunk["values"].shape))
