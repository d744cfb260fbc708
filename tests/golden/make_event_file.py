#!/usr/bin/env python3
"""Prints io/event_file.txt: what TensorBoard's own code makes of a few summaries, for
tests/io/event_file_test.cpp.

    pip install tensorboard==2.21.0 && tests/golden/make_event_file.py >
        tests/golden/io/event_file.txt

Each line has a name and the bytes in hexadecimal: of records as written to a
file, with a wall time of 0.
"""

import io

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.compat.proto.event_pb2 import SessionLog
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.record_writer import RecordWriter


class Bytes(io.BytesIO):
    """RecordWriter closes what it writes to."""

    def close(self):
        pass


def record(step, **fields):
    stream = Bytes()
    writer = RecordWriter(stream)
    writer.write(event_pb2.Event(wall_time=0.0, step=step, **fields).SerializeToString())
    writer.flush()
    return stream.getvalue().hex()


def summary(*values):
    return summary_pb2.Summary(value=values)


def histogram(values, limits, counts):
    return summary_pb2.HistogramProto(
        min=min(values), max=max(values), num=len(values), sum=sum(values),
        sum_squares=sum(value * value for value in values),
        bucket_limit=limits, bucket=counts,
    )  # fmt: skip


def main():
    value = summary_pb2.Summary.Value
    print(
        "scalars",
        record(
            7,
            summary=summary(
                value(tag="loss/train", simple_value=2.5), value(tag="lr", simple_value=1e-3)
            ),
        ),
    )
    values = [-1.5, 0.25, 0.5, 2.0]
    print(
        "histogram",
        record(
            300,
            summary=summary(
                value(tag="amax", histo=histogram(values, [-1, 0, 1, 2, 3], [1, 0, 2, 0, 1]))
            ),
        ),
    )
    tensor = TensorProto(dtype=7, string_val=["    a: 1".encode()])
    tensor.tensor_shape.dim.add(size=1)
    metadata = summary_pb2.SummaryMetadata(
        plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    )
    print("text", record(1, summary=summary(value(tag="config", tensor=tensor, metadata=metadata))))
    print("start", record(41, session_log=SessionLog(status=SessionLog.START)))


if __name__ == "__main__":
    main()
