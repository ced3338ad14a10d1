"""Where the data sets' official files are, and their checksums."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DownloadSource:
    """The official files of one data set: where they come from and where they go.

    Attributes:
        folder: their place below the data root.
        files: what that folder holds, each file plain or gzipped (with .gz after its name).
        downloads: URL -> "algorithm:checksum". A .tar.gz must hold the folder itself; from a .zip the files are taken,
            gzipped, whichever folder they lie in.
    """

    folder: str
    files: tuple[str, ...]
    downloads: Mapping[str, str]


_KINDS = ("images-idx3", "labels-idx1")
_IDX = tuple(f"{pool}-{kind}-ubyte" for pool in ("train", "t10k") for kind in _KINDS)


def _idx_source(folder: str, url: str, *checksums: str) -> DownloadSource:
    """Return the source of four IDX files, with their checksums in the order of `_IDX`."""
    return DownloadSource(folder, _IDX, dict(zip((f"{url}/{file}.gz" for file in _IDX), checksums, strict=True)))


SOURCES = {
    "mnist": _idx_source(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "cifar10": DownloadSource(
        "cifar-10-batches-bin",
        (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
        {"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "fashion-mnist": _idx_source(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "emnist": DownloadSource(
        "emnist",
        tuple(f"emnist-balanced-{pool}-{kind}-ubyte" for pool in ("train", "test") for kind in _KINDS),
        {"https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
    ),
    "cifar100": DownloadSource(
        "cifar-100-binary",
        ("train.bin", "test.bin"),
        {"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
    ),
}
