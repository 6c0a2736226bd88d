"""attention and gradients against the formula in float64, and wrong uses. VKATTN_TEST_DEVICE names the device."""

import concurrent.futures
import os
import subprocess
import sys
import threading
import unittest
import warnings

import numpy as np

import vkattn

device = vkattn.Device(os.environ.get("VKATTN_TEST_DEVICE", "cpu"))
rng = np.random.default_rng(1)


def normal(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def formula(q, k, v, visible=None, scale=None, bias=0.0, sinks=None):
    """O, LSE and P of dense heads in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale) + bias
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    all_scores = s if sinks is None else np.concatenate([s, np.broadcast_to(sinks[None, :, None, None], (*s.shape[:3], 1))], 3)
    with np.errstate(all="ignore"):
        m = np.max(all_scores, 3, keepdims=True)
        m = np.where(np.isfinite(m), m, 0)
        total = np.exp(all_scores - m).sum(3, keepdims=True)
        p = np.where(total > 0, np.exp(s - m) / total, 0)
        lse = (np.log(total) + m)[..., 0]
    return p @ v, lse, p


class Forward(unittest.TestCase):
    def check(self, got, want, tolerance=1e-4):
        np.testing.assert_allclose(got.astype(np.float64), want, tolerance, tolerance)

    def test_dense(self):
        for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 2e-3)):
            q, k, v = normal(2, 4, 10, 32, dtype=dtype), normal(2, 2, 17, 32, dtype=dtype), normal(2, 2, 17, 24, dtype=dtype)
            o, lse = vkattn.attention(q, k, v, device=device, return_lse=True)
            want, want_lse, _ = formula(q, k, v)
            self.assertEqual((o.dtype, o.shape, lse.dtype, lse.shape), (q.dtype, (2, 4, 10, 24), np.float32, (2, 4, 10)))
            self.check(o, want, tolerance)
            self.check(lse, want_lse, tolerance)

    def test_masks(self):
        q, k, v = normal(1, 2, 9, 16), normal(1, 2, 14, 16), normal(1, 2, 14, 16)
        i, j = np.arange(9)[:, None], np.arange(14)[None]
        at = i + 14 - 9
        for options, visible in (
            (dict(causal="top-left"), j <= i),
            (dict(causal="bottom-right"), j <= at),
            (dict(causal="bottom-right", window=(3, -1)), (j <= at) & (j >= at - 3)),
            (dict(align="bottom-right", window=(2, 1)), (j <= at + 1) & (j >= at - 2)),
            (dict(causal="bottom-right", attention_chunk=4), (j <= at) & (j >= at - at % 4)),
            (dict(mask=(i + j)[None, None] % 3 > 0), (i + j) % 3 > 0),
            (dict(mask_mod="j % 2 == 0"), j % 2 == 0),
        ):
            with self.subTest(options):
                self.check(vkattn.attention(q, k, v, device=device, **options), formula(q, k, v, visible)[0])

    def test_scores(self):
        q, k, v = normal(2, 2, 5, 16), normal(2, 2, 6, 16), normal(2, 2, 6, 16)
        bias, slopes, sinks = normal(1, 2, 5, 6), normal(2), normal(2)
        i, j = np.arange(5)[:, None], np.arange(6)[None]
        table = normal(2, 6)
        for options, want in (
            (dict(scale=0.0), formula(q, k, v, scale=0)),
            (dict(scale=0.7, bias=bias), formula(q, k, v, scale=0.7, bias=bias)),
            (dict(alibi=slopes, align="top-left"), formula(q, k, v, bias=-slopes[:, None, None] * abs(i - j))),
            (dict(alibi=np.stack((slopes, 2 * slopes)), align="top-left"), formula(q, k, v, bias=-np.stack((slopes, 2 * slopes))[:, :, None, None] * abs(i - j))),
            (dict(sinks=list(map(float, sinks))), formula(q, k, v, sinks=sinks)),
            (dict(score_mod="s + t[h, j]", tables={"t": table}), formula(q, k, v, bias=table[:, None, :])),
        ):
            with self.subTest(list(options)):
                self.check(vkattn.attention(q, k, v, device=device, **options), want[0])
        o, lse, top = vkattn.attention(q, k, v, device=vkattn.Device("cpu"), return_lse=True, return_max_logits=True)
        want = formula(q, k, v)
        self.check(o, want[0])
        self.check(lse, want[1])
        self.check(top, (np.einsum("bhid,bhjd->bhij", q, k) * 16**-0.5).max((0, 2, 3)))

    def test_dropout(self):
        q, k = normal(1, 2, 30, 16), normal(1, 2, 40, 16)
        options = dict(device=vkattn.Device("cpu"), dropout=0.5)
        a = vkattn.attention(q, k, k, dropout_seed=5, dropout_offset=9, **options)
        b = vkattn.attention(q, k, k, dropout_seed=2, dropout_state=[3, 9], **options)
        self.assertTrue(np.array_equal(a, b))
        self.assertFalse(np.array_equal(a, vkattn.attention(q, k, k, **options)))

    def test_packed_and_paged(self):
        q, k, v = normal(1, 2, 12, 16), normal(1, 2, 20, 16), normal(1, 2, 20, 16)
        cu_q, cu_k = [0, 5, 12], np.array([0, 9, 20])
        o = vkattn.attention(q, k, v, device=device, cu_q=cu_q, cu_k=cu_k, causal="bottom-right")
        for b in range(2):
            rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
            n, m = rows.stop - rows.start, keys.stop - keys.start
            visible = np.arange(m)[None] <= np.arange(n)[:, None] + m - n
            self.check(o[:, :, rows], formula(q[:, :, rows], k[:, :, keys], v[:, :, keys], visible)[0])
        q, k, v = normal(2, 2, 1, 16), normal(5, 2, 4, 16), normal(5, 2, 4, 16)
        table = np.array([[3, 0, 1], [4, 2, 2]])
        o = vkattn.attention(q, k, v, device=device, block_table=table, used_k=[10, 7])
        for b, n in enumerate((10, 7)):
            keys, values = (np.concatenate(list(x[table[b]]), 1)[None, :, :n] for x in (k, v))
            self.check(o[b : b + 1], formula(q[b : b + 1], keys, values)[0])

    def test_layouts(self):
        """Views are taken as they are, or copied; outputs may be views."""
        base = normal(2, 10, 4, 32)
        q = base.transpose(0, 2, 1, 3)
        k, v = normal(2, 4, 12, 64)[..., ::2], normal(2, 4, 12, 32)[:, :, ::-1]
        want = formula(q, k, v)[0]
        self.check(vkattn.attention(q, k, v, device=device), want)
        self.check(vkattn.attention(q.astype(">f4").astype(np.float32), np.asfortranarray(k), v, device=device), want)
        one = normal(1, 1, 1, 32)
        wide = np.broadcast_to(one, k.shape)
        self.check(vkattn.attention(q, k, wide, device=device), np.broadcast_to(one, want.shape))
        memory = np.full((2, 10, 5, 32), 7, np.float32)
        out = memory[:, :, :4].transpose(0, 2, 1, 3)
        self.assertIs(vkattn.attention(q, k, v, device=device, out=out), out)
        self.check(out, want)
        self.assertTrue((memory[:, :, 4] == 7).all())

    def test_nothing(self):
        o = vkattn.attention(normal(0, 2, 5, 16), normal(0, 2, 5, 16), normal(0, 2, 5, 16), device=device)
        self.assertEqual(o.shape, (0, 2, 5, 16))

    def test_plan(self):
        q = normal(1, 1, 4, 16)
        self.assertIn("tier ", vkattn.plan(q, q, q, device=device))


class Backward(unittest.TestCase):
    def test_gradients(self):
        """Against the derivative of the formula."""
        q, k, v = normal(2, 4, 6, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16)
        bias, sinks = normal(1, 4, 6, 9), normal(4)
        visible = np.arange(9)[None] <= np.arange(6)[:, None] + 3
        options = dict(causal="bottom-right", bias=bias, sinks=sinks, device=device)
        o, lse = vkattn.attention(q, k, v, return_lse=True, **options)
        d_o, d_lse = normal(*o.shape), normal(*lse.shape)
        got = vkattn.gradients(d_o, q, k, v, o, lse, d_lse=d_lse, of=("q", "k", "v", "bias", "sinks"), **options)
        _, _, p = formula(q, k, v, visible, bias=bias, sinks=sinks)
        k2, v2 = np.repeat(k, 2, 1).astype(np.float64), np.repeat(v, 2, 1).astype(np.float64)
        d_p = d_o @ v2.swapaxes(2, 3)
        delta = (p * d_p).sum(3, keepdims=True) - d_lse[..., None]
        d_s = p * (d_p - delta)
        group = lambda x: x.reshape(2, 2, 2, 9, 16).sum(2)  # noqa: E731
        sink = 1 - p.sum(3)
        want = vkattn.Gradients(
            d_s @ k2 / 4, group(d_s.swapaxes(2, 3) @ q) / 4, group(p.swapaxes(2, 3) @ d_o), d_s.sum(0, keepdims=True),
            (sink * -delta[..., 0]).sum((0, 2)),
        )  # fmt: skip
        for name, x, y in zip(got._fields, got, want):
            np.testing.assert_allclose(x, y, 2e-4, 2e-4, err_msg=name)
        only = vkattn.gradients(d_o, q, k, v, o, lse, of=["v"], **options)
        self.assertEqual([x is None for x in only], [True, True, False, True, True])

    def test_tables(self):
        """A table that is added to the scores has the gradient of a bias of one row."""
        q, k, v, table = normal(2, 4, 6, 16), normal(2, 2, 9, 16), normal(2, 2, 9, 16), normal(4, 9)
        results = []
        for of, options in (
            ("tables.t", dict(score_mod="s + t[h, j]", tables={"t": table})),
            ("bias", dict(bias=table[None, :, None])),
        ):
            o, lse = vkattn.attention(q, k, v, return_lse=True, device=device, **options)
            results.append(vkattn.gradients(o, q, k, v, o, lse, of=[of], device=device, **options))
        np.testing.assert_allclose(results[0].d_tables["t"], results[1].d_bias[0, :, 0], 2e-4, 2e-4)
        with self.assertRaisesRegex(ValueError, "no table u"):
            vkattn.gradients(o, q, k, v, o, lse, of=["tables.u"], device=device)


class Misuse(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v = normal(2, 4, 5, 16), normal(2, 2, 6, 16), normal(2, 2, 6, 16)

    def refused(self, error, words, *args, **options):
        with self.assertRaisesRegex(error, words):
            vkattn.attention(*(args or (self.q, self.k, self.v)), **{"device": device, **options})

    def test_arrays(self):
        q, k, v = self.q, self.k, self.v
        self.refused(TypeError, "q is a list", q.tolist(), k, v)
        self.refused(TypeError, "float64", *(x.astype(np.float64) for x in (q, k, v)))
        self.refused(TypeError, "int32", *(x.astype(np.int32) for x in (q, k, v)))
        self.refused(TypeError, "k is of float16, want float32", q, k.astype(np.float16), v)
        self.refused(ValueError, "want 4 dimensions", q[0], k, v)
        self.refused(ValueError, "want 16 columns", q, k[..., :8], v)
        self.refused(ValueError, "v has shape", q, k, v[:, :, :5])
        self.refused(ValueError, "batch of 2", q, k[:1], v[:1])
        self.refused(ValueError, "hkv is 3", q, np.concatenate([k, k[:, :1]], 1), np.concatenate([v, v[:, :1]], 1))
        self.refused(ValueError, "sk is 0", q, k[:, :, :0], v[:, :, :0])
        self.refused(ValueError, "head_dim is 0", q[..., :0], k[..., :0], v)

    def test_options(self):
        for error, words, options in (
            (TypeError, "no option bananas", dict(bananas=1)),
            (ValueError, "causal is 'left'", dict(causal="left")),
            (ValueError, "name top-left or bottom-right", dict(causal=True)),
            (TypeError, "scale is 'x'", dict(scale="x")),
            (ValueError, "scale is", dict(scale=float("nan"))),
            (ValueError, "softcap", dict(softcap=-1.0)),
            (ValueError, "dropout is 1", dict(dropout=1)),
            (ValueError, "align", dict(window=(1, 1))),
            (TypeError, "window_left", dict(window=("a", 1))),
            (ValueError, "window_left is .*beyond", dict(window=(2**40, 1))),
            (ValueError, "fixed_split", dict(fixed_split=-1)),
            (ValueError, "dropout_seed", dict(dropout_seed=-1)),
            (ValueError, "tier is 'fast'", dict(tier="fast")),
            (NotImplementedError, "tier cubin|cubin", dict(tier="cubin")),
            (ValueError, "bias has 5 columns", dict(bias=normal(1, 1, 5, 5))),
            (ValueError, "bias has shape", dict(bias=normal(1, 3, 5, 6))),
            (TypeError, "mask is of float32", dict(mask=normal(1, 1, 5, 6))),
            (ValueError, "sinks has 3 numbers", dict(sinks=[1, 2, 3])),
            (TypeError, "alibi is of", dict(alibi=["a"] * 4)),
            (ValueError, "score_mod", dict(score_mod="s +")),
            (ValueError, "used_k", dict(used_k=[6, 7])),
            (ValueError, "used_k has 1 numbers", dict(used_k=[6])),
            (TypeError, "used_k is of float64", dict(used_k=[6.0, 6.0])),
            (ValueError, "with cu_q", dict(cu_q=[0, 5, 10])),
            (ValueError, "block_table has shape", dict(block_table=[0])),
            (TypeError, "device is a str", dict(device="cpu")),
            (TypeError, "out is a list", dict(out=[])),
            (TypeError, "out is of float16", dict(out=np.zeros((2, 4, 5, 16), np.float16))),
            (ValueError, "out has shape", dict(out=np.zeros((2, 4, 5, 17), np.float32))),
            (ValueError, "out is not writeable", dict(out=np.broadcast_to(np.float32(0), (2, 4, 5, 16)))),
            (ValueError, "out is not writeable", dict(out=np.zeros((2, 4, 5, 32), np.float32)[..., ::2])),
            (ValueError, "overlapping q", dict(out=self.q)),
        ):
            with self.subTest(words):
                self.refused(error, words, **options)

    def test_gradients(self):
        o, lse = vkattn.attention(self.q, self.k, self.v, device=device, return_lse=True)
        for error, words, args, options in (
            (ValueError, "o has shape", (o, self.q, self.k, self.v, o[:1], lse), {}),
            (TypeError, "lse is of float64", (o, self.q, self.k, self.v, o, lse.astype(np.float64)), {}),
            (ValueError, "d_o has shape", (o[:, :, :1], self.q, self.k, self.v, o, lse), {}),
            (ValueError, "of has 'x'", (o, self.q, self.k, self.v, o, lse), dict(of=["x"])),
            (ValueError, "there is no bias", (o, self.q, self.k, self.v, o, lse), dict(of=["bias"])),
            (ValueError, "missing", (o, self.q, self.k, self.v, o, lse), dict(of=[])),
        ):
            with self.subTest(words), self.assertRaisesRegex(error, words):
                vkattn.gradients(*args, device=device, **options)

    def test_devices(self):
        self.assertRaises(vkattn.Error, vkattn.Device, "no device has this name")
        self.assertRaises(TypeError, vkattn.Device, 7)
        with vkattn.Device("cpu") as d:
            self.assertTrue(d.is_cpu)
            vkattn.attention(self.q, self.k, self.v, device=d)
        d.close()
        self.refused(ValueError, "closed", device=d)


class Processes(unittest.TestCase):
    def test_threads(self):
        q, k, v = normal(1, 4, 64, 32), normal(1, 4, 64, 32), normal(1, 4, 64, 32)
        want = vkattn.attention(q, k, v, device=device)

        def work(i):
            scale = 32**-0.5 if i % 2 else None
            return vkattn.attention(q, k, v, device=device, scale=scale)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for got in pool.map(work, range(40)):
                np.testing.assert_allclose(got, want, 1e-5, 1e-5)

    def test_many_configs(self):
        q = normal(1, 1, 2, 8)
        with vkattn.Device("cpu") as d:
            for i in range(300):
                vkattn.attention(q, q, q, device=d, scale=float(i))
            self.assertEqual(len(d._ops), 256)

    def test_close_under_calls(self):
        q = normal(1, 4, 200, 64)
        for _ in range(5):
            d, errors = vkattn.Device("cpu"), []

            def work():
                try:
                    while True:
                        vkattn.attention(q, q, q, device=d)
                except (ValueError, vkattn.Error) as e:
                    errors.append(e)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for t in threads:
                t.start()
            while True:
                try:
                    d.close()
                    break
                except vkattn.Error:
                    pass
            for t in threads:
                t.join()
            self.assertEqual(len(errors), 3)

    def test_fork(self):
        q = normal(1, 1, 2, 8)
        vkattn.attention(q, q, q, device=device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            try:
                vkattn.attention(q, q, q, device=device)
            except vkattn.Error as e:
                os._exit(7 if "fork" in str(e) else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        vkattn.attention(q, q, q, device=device)

    def test_exit_with_work_in_flight(self):
        program = """
import os, threading, numpy as np, vkattn
d = vkattn.Device(os.environ.get("VKATTN_TEST_DEVICE", "cpu"))
q = np.ones((1, 4, 200, 64), np.float32)
begun = threading.Barrier(4)
def work():
    vkattn.attention(q, q, q, device=d)
    begun.wait()
    while True:
        vkattn.attention(q, q, q, device=d)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
