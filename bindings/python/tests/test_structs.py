"""The structs of ctypes are those of the library. It needs no NumPy."""

import ctypes
import importlib.util
import os
import unittest

here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("_library", os.path.join(here, "../vkattn/_library.py"))
library = importlib.util.module_from_spec(spec)
spec.loader.exec_module(library)


class Structs(unittest.TestCase):
    def test_offsets(self):
        structs, members = {}, None
        with open(os.path.join(here, "../../c/abi.txt")) as f:
            for line in f:
                words = line.split()
                if line.startswith("\t"):
                    members[words[0]] = (int(words[1]), int(words[2]))
                elif len(words) == 2:
                    members = {}
                    structs[words[0]] = (int(words[1]), members)
        for s in library.STRUCTS:
            with self.subTest(s.__name__):
                size, members = structs[s.__name__]
                got = {n: (getattr(s, n).offset, getattr(s, n).size) for n, _ in s._fields_}
                self.assertEqual(got, members)
                self.assertEqual(ctypes.sizeof(s), size)

    def test_abi(self):
        with open(os.path.join(here, "../../c/vkattn.h")) as f:
            self.assertIn(f"#define VKATTN_ABI {library.ABI}\n", f.read())

    def test_errors(self):
        c = library.Library()
        for words, error, call in (
            ("NULL", ValueError, ("device_destroy", 12345)),
            ("device is NULL", ValueError, ("device_open", None, None)),
            ("no Vulkan|no device|none|loader|libvulkan", library.Error,
             ("device_open", library.made(library.DeviceOptions, device=b"no such device"), ctypes.c_void_p())),
        ):  # fmt: skip
            with self.subTest(call[0]), self.assertRaisesRegex(error, words if call[0] != "device_destroy" else "no handle"):
                c.call(*call)


if __name__ == "__main__":
    unittest.main()
