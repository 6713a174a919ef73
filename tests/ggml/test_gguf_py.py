"""A converted file read by gguf-py, the format's own library: every key, tensor and value agrees with our reader."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize as dequantize_py

from clover_local.ggml.gguf import GgufFile
from clover_local.ggml.quantize import dequantize


def test_both_readers_agree(trained_int4: Path) -> None:
    ours, theirs = GgufFile.open(trained_int4), GGUFReader(trained_int4)
    fields = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert set(ours.keys) == set(fields)
    for name, field in fields.items():
        want, got = field.contents(), ours.keys[name]
        if isinstance(got, np.ndarray):
            assert got.tolist() == want, name
        else:
            assert got == want, name
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(int(n) for n in tensor.shape)
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.type.name == tensor.tensor_type.name.lower()
        want = dequantize_py(tensor.data, tensor.tensor_type).reshape(-1, info.shape[0])
        got = dequantize(info.type.name, ours.array(tensor.name), info.shape[0])
        assert np.allclose(got, want, rtol=0, atol=1e-6), tensor.name
