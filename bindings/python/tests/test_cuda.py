"""Arrays on a CUDA device without Vulkan, which is that of the fake driver of package cudapath."""

import unittest

import numpy as np

import vkattn

q, k = (np.random.default_rng(1).standard_normal(s).astype(np.float32) for s in ((2, 4, 9, 32), (2, 2, 14, 32)))
cpu = vkattn.Device("cpu")


class CUDA(unittest.TestCase):
    def test_devices(self):
        for name in (None, "cuda", "cuda:0"):
            with vkattn.Device(name) as device:
                self.assertTrue(device.is_cuda and not device.is_cpu and "fake" in device.name)
        for name in ("cuda:3", "cuda:x"):
            with self.assertRaisesRegex((ValueError, vkattn.Error), "CUDA device"):
                vkattn.Device(name)

    def test_attention(self):
        self.assertIn("cuda", vkattn.plan(q, k, k))
        for causal in ("none", "bottom-right"):
            got, want = (vkattn.attention(q, k, k, causal=causal, device=d) for d in (None, cpu))
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)

    def test_options(self):
        h, g = q.astype(np.float16), k.astype(np.float16)
        packed = {"cu_q": [0, 4, 9], "cu_k": [0, 5, 14], "causal": "bottom-right"}
        with vkattn.Device("cuda") as device:
            for options in ({"softcap": 3.0}, {"window": (3, 0), "causal": "bottom-right"}, {"used_k": [5, 14]}, packed):
                one = slice(0, 1 if "cu_q" in options else None)
                self.assertIn("_general", vkattn.plan(h[one], g[one], g[one], device=device, **options))
                vkattn.attention(h[one], g[one], g[one], device=device, **options)

    def test_what_its_kernels_do_not_compute(self):
        got, want = (vkattn.attention(q, k, k, softcap=3.0, device=d) for d in (None, cpu))
        np.testing.assert_array_equal(got, want)
        with vkattn.Device("cuda") as device, self.assertRaises(NotImplementedError):
            vkattn.attention(q, k, k, softcap=3.0, device=device)
        with self.assertRaises(NotImplementedError):
            vkattn.attention(q, k, k, softcap=3.0, tier="cuda")


if __name__ == "__main__":
    unittest.main()
