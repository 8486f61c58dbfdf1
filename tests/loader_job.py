"""A loop over a real loader, with its own stopwatch: ``loader_job.py LOADER FOLDER``.

Prints, as JSON, the milliseconds that each ``next`` took.
"""

import importlib.machinery
import importlib.util
import json
import sys
import tempfile
import time
import types
from pathlib import Path

import paceline.record as record

SIZE, STEPS, SLEEP_S = 40, 12, 0.02


def slow(sample):
    time.sleep(SLEEP_S)
    return sample


class Rows:
    """A data set that takes its time for each row."""

    def __len__(self):
        return SIZE

    def __getitem__(self, i):
        if not 0 <= i < SIZE:
            raise IndexError
        return slow(int(i))


def samples():
    for i in range(SIZE):
        yield slow(i)


def dali(kind):
    import numpy as np
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.plugin import pytorch
    from nvidia.dali.types import FLOAT

    def source():
        for i in range(SIZE):
            yield [np.full(8, slow(i), np.float32)]

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def pipeline():
        sample = fn.external_source(source=source(), dtype=FLOAT)
        return (sample, sample) if kind == "classification" else sample

    if kind == "classification":
        return pytorch.DALIClassificationIterator([pipeline()])
    if kind == "ragged":
        dense = pytorch.DALIRaggedIterator.DENSE_TAG
        return pytorch.DALIRaggedIterator([pipeline()], ["x"], output_types=[dense])
    return pytorch.DALIGenericIterator([pipeline()], ["x"])


def grain_loader():
    import grain

    return grain.DataLoader(
        data_source=Rows(),
        sampler=grain.samplers.SequentialSampler(SIZE, shard_options=grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(1)],
        worker_count=0,
        read_options=grain.ReadOptions(num_threads=0, prefetch_buffer_size=0),
    )


def grain_dataset():
    import grain

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return record.batches(grain.MapDataset.source(Rows()).to_iter_dataset(options))


def litdata_loader():
    from litdata.streaming import StreamingDataLoader, StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    class Slow(StreamingDataset):
        def __getitem__(self, i):
            return slow(super().__getitem__(i))

    folder = tempfile.mkdtemp(dir=".")
    writer = BinaryWriter(folder, chunk_size=SIZE)
    for i in range(SIZE):
        writer[i] = i
    writer.done()
    writer.merge()
    return StreamingDataLoader(Slow(folder), batch_size=1)


def streaming_loader():
    if importlib.util.find_spec("torchvision") is None:
        stand_for_torchvision()
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    class Slow(StreamingDataset):
        def __getitem__(self, i):
            return slow(super().__getitem__(i))

    folder = tempfile.mkdtemp(dir=".") + "/mds"
    with MDSWriter(out=folder, columns={"x": "int"}) as writer:
        for i in range(SIZE):
            writer.write({"x": i})
    return StreamingDataLoader(Slow(local=folder, batch_size=1), batch_size=1)


def stand_for_torchvision():
    """``import streaming`` imports its data sets of images, which no test uses."""
    names = ("", ".datasets", ".transforms", ".transforms.functional")
    for name in (f"torchvision{name}" for name in names):
        module = sys.modules[name] = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.VisionDataset, module.to_tensor = object, None


def ray_data():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    rows = ray.data.range(SIZE)
    return rows.iter_torch_batches(batch_size=1, collate_fn=slow, prefetch_batches=0)


def torch_loader():
    from torch.utils.data import DataLoader

    return DataLoader(Rows(), batch_size=1)


def stateful_loader():
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Rows(), batch_size=1)


def nodes_loader():
    from torchdata import nodes

    return nodes.Loader(nodes.Mapper(nodes.IterableWrapper(range(SIZE)), slow))


def webdataset(*, loader):
    import webdataset as wds

    path = tempfile.mkdtemp(dir=".") + "/rows.tar"
    with wds.TarWriter(path) as writer:
        for i in range(SIZE):
            writer.write({"__key__": f"{i:04d}", "txt": str(i)})
    rows = wds.WebDataset(path, shardshuffle=False).decode().map(slow)
    return wds.WebLoader(rows, batch_size=None, num_workers=0) if loader else record.batches(rows)


def hugging_face():
    import datasets

    rows = datasets.Dataset.from_dict({"x": list(range(SIZE))}).with_transform(slow)
    return record.batches(rows.iter(1))


LOADERS = {
    "dali": lambda: dali("generic"),
    "dali-classification": lambda: dali("classification"),
    "dali-ragged": lambda: dali("ragged"),
    "datasets": hugging_face,
    "generator": lambda: record.batches(samples()),
    "grain": grain_loader,
    "grain-dataset": grain_dataset,
    "litdata": litdata_loader,
    "nodes": nodes_loader,
    "ray": ray_data,
    "stateful": stateful_loader,
    "streaming": streaming_loader,
    "torch": torch_loader,
    "torch-line": lambda: record.batches(torch_loader()),
    "webdataset": lambda: webdataset(loader=False),
    "webloader": lambda: webdataset(loader=True),
}


def main(loader, folder):
    batches = iter(LOADERS[loader]())
    took = []
    with record.start(Path(folder), every=1) as recorder:
        for number in range(STEPS):
            with recorder.step(number):
                begin = time.perf_counter()
                next(batches)
                took.append(1e3 * (time.perf_counter() - begin))
                with recorder.op("forward-compute", microbatch=0):
                    pass
    print(json.dumps(took))


if __name__ == "__main__":
    main(*sys.argv[1:])
