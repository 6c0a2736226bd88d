"""wheel.py BUILT FOLDER packs the wheel of vkattn: the package, and the libraries and LICENSES.txt of the folder BUILT.

The same files give the same bytes. The tag names the machine and the newest version of glibc that the library needs."""

import base64
import hashlib
import os
import platform
import re
import sys
import zipfile

VERSION = "0.1.0"

METADATA = f"""Metadata-Version: 2.1
Name: vkattn
Version: {VERSION}
Summary: Exact attention of NumPy arrays and PyTorch tensors, forward and gradients, on GPUs and on the CPU
License: Apache-2.0
License-File: LICENSE
License-File: LICENSES.txt
License-File: NOTICE
Requires-Python: >=3.9
Requires-Dist: numpy
Description-Content-Type: text/markdown

"""

NOTICE = """libvkattn.so is built from the Go, GLSL and CUDA sources of vkattn, under the licence in LICENSE. It has in it:

- SPIR-V modules (shaders/spv), compiled from shaders/*.comp by glslc;
- PTX and cubins (cudapath/kernels/bin), compiled from cudapath/kernels/*.cu by nvcc, which links its own device
  functions (libdevice) such as exp2f;
- Go's runtime and standard library, and Go modules, whose licences LICENSES.txt has.
"""


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n")[0])
    built, folder = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))

    def read(*path: str) -> bytes:
        with open(os.path.join(here, *path), "rb") as f:
            return f.read()

    libraries = {name: read(os.path.abspath(built), name) for name in ("libvkattn.so", "libvkattn_torch.so")}
    glibc = max((int(a), int(b)) for x in libraries.values() for a, b in re.findall(rb"GLIBC_(\d+)\.(\d+)", x))
    tag = "py3-none-manylinux_%d_%d_%s" % (*glibc, platform.machine())
    info = f"vkattn-{VERSION}.dist-info/"
    names = ("__init__.py", "_library.py", "_torch.py", "flash_attn.py", "transformers.py", "py.typed")
    files = {f"vkattn/{name}": read("vkattn", name) for name in names}
    files.update({f"vkattn/{name}": x for name, x in libraries.items()})
    files[info + "METADATA"] = METADATA.encode() + read("../../docs/python.md")
    files[info + "WHEEL"] = f"Wheel-Version: 1.0\nGenerator: wheel.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[info + "LICENSE"] = read("../../LICENSE")
    files[info + "LICENSES.txt"] = read(os.path.abspath(built), "LICENSES.txt")
    files[info + "NOTICE"] = NOTICE.encode()

    def row(name: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(data)}\n"

    record = "".join(row(*f) for f in files.items()) + info + "RECORD,,\n"
    files[info + "RECORD"] = record.encode()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"vkattn-{VERSION}-{tag}.whl")
    with zipfile.ZipFile(path + ".part", "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            z.writestr(entry, data)
    os.replace(path + ".part", path)
    print(path)


main()
