"""vkattn.flash_attn and vkattn.sdpa against the formula. VKATTN_TEST_TORCH names the device: cpu or cuda.

On a CUDA device it also compiles a model and captures CUDA graphs."""

import importlib.util
import itertools
import os
import subprocess
import sys
import threading
import unittest

import torch

import vkattn
from vkattn import flash_attn as fa
from vkattn import transformers as hf

device = os.environ.get("VKATTN_TEST_TORCH", "cpu")
cuda = device == "cuda"
newer = hasattr(torch.library, "register_autograd")
torch.manual_seed(1)


def normal(*shape, dtype=torch.float32, grad=False):
    return torch.randn(*shape, device=device).to(dtype).requires_grad_(grad)


def formula(q, k, v, causal=False, window=(-1, -1), softcap=0.0, scale=None, slopes=None, bias=None, visible=None, sinks=None):
    """O and LSE of [batch, rows, heads, dim] in float64."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    rows, keys = q.shape[2], k.shape[2]
    i = torch.arange(rows, device=q.device)[:, None] + keys - rows
    j = torch.arange(keys, device=q.device)[None]
    if slopes is not None:
        s = s - slopes.reshape(-1, q.shape[1])[:, :, None, None] * (i - j).abs()
    if bias is not None:
        s = s + bias
    seen = torch.ones_like(i + j, dtype=torch.bool) if visible is None else visible
    if causal:
        seen = seen & (j <= i)
    if window[0] >= 0:
        seen = seen & (j >= i - window[0])
    if window[1] >= 0:
        seen = seen & (j <= i + window[1])
    s = s.masked_fill(~seen, -float("inf"))
    if sinks is not None:
        s = torch.cat((s, sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)), 3)
        v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    p = torch.nan_to_num(torch.softmax(s, 3))
    return (p @ v).transpose(1, 2), torch.logsumexp(s, 3)


def integers(*x):
    return torch.tensor(x, dtype=torch.int32, device=device)


def tolerance(dtype):
    return {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]


dtypes = (torch.float16, torch.bfloat16) if cuda else (torch.float32, torch.float16, torch.bfloat16)
options = [{}, {"causal": True}, {"causal": True, "softmax_scale": 0.3}, {"window_size": (3, 2)}, {"causal": True, "window_size": (4, -1)},
           {"softcap": 5.0}]  # fmt: skip


class Case(unittest.TestCase):
    def close(self, got, want, dtype):
        self.assertEqual(tuple(got.shape), tuple(want.shape))
        torch.testing.assert_close(got.double(), want.double(), rtol=tolerance(dtype), atol=tolerance(dtype))


def of_formula(x):
    return {{"softmax_scale": "scale", "window_size": "window"}.get(k, k): v for k, v in x.items()}


class Flash(Case):
    def test_forward_and_gradients(self):
        for dtype in dtypes:
            for x in options:
                with self.subTest(dtype=dtype, **x):
                    q, k, v = (normal(2, s, h, 64, dtype=dtype, grad=True) for s, h in ((70, 4), (90, 2), (90, 2)))
                    o, lse, s_dmask = fa.flash_attn_func(q, k, v, return_attn_probs=True, **x)
                    self.assertEqual((o.dtype, lse.dtype, s_dmask.numel()), (dtype, torch.float32, 0))
                    self.assertTrue(o.is_contiguous())
                    want, want_lse = formula(q, k, v, **of_formula(x))
                    self.close(o, want, dtype)
                    self.close(lse, want_lse, torch.float32 if dtype == torch.float32 else torch.float16)
                    d_o = normal(*o.shape, dtype=dtype)
                    got = torch.autograd.grad(o, (q, k, v), d_o)
                    for g, w, of in zip(got, torch.autograd.grad(want, (q, k, v), d_o.double()), (q, k, v)):
                        self.assertEqual(g.dtype, dtype)
                        self.close(g, w, dtype)
                    again = torch.autograd.grad(fa.flash_attn_func(q, k, v, **x), (q, k, v), d_o)
                    self.assertTrue(all(torch.equal(a, b) for a, b in zip(got, again)))
                    with torch.no_grad():
                        for _ in range(3):
                            self.assertTrue(torch.equal(fa.flash_attn_func(q, k, v, **x), o))

    def test_packed_forms(self):
        dtype = dtypes[0]
        qkv, kv, q = normal(2, 40, 3, 4, 64, dtype=dtype, grad=True), normal(2, 50, 2, 2, 64, dtype=dtype), normal(2, 40, 4, 64, dtype=dtype)
        o = fa.flash_attn_qkvpacked_func(qkv, causal=True)
        self.close(o, formula(*qkv.unbind(2), causal=True)[0], dtype)
        (got,) = torch.autograd.grad(o.float().sum(), qkv)
        (want,) = torch.autograd.grad(formula(*qkv.unbind(2), causal=True)[0].sum(), qkv)
        self.close(got, want, dtype)
        self.close(fa.flash_attn_kvpacked_func(q, kv), formula(q, *kv.unbind(2))[0], dtype)

    def test_packed_sequences(self):
        rows, keys = [0, 5, 5, 17], [0, 9, 12, 30]
        dtype, cu_q, cu_k = dtypes[0], integers(*rows), integers(*keys)
        q, k, v = (normal(n, h, 32, dtype=dtype, grad=True) for n, h in ((17, 4), (30, 2), (30, 2)))
        o, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 12, 18, causal=True, return_attn_probs=True)
        want = [formula(*(x[None, a:b] for x, (a, b) in ((q, r), (k, s), (v, s))), causal=True)[0][0]
                for r, s in zip(zip(rows, rows[1:]), zip(keys, keys[1:]))]  # fmt: skip
        want = torch.cat(want)
        self.close(o, want, dtype)
        self.assertEqual(tuple(lse.shape), (4, 17))
        d_o = normal(*o.shape, dtype=dtype)
        for g, w in zip(torch.autograd.grad(o, (q, k, v), d_o), torch.autograd.grad(want, (q, k, v), d_o.double())):
            self.close(g, w, dtype)
        qkv = normal(17, 3, 4, 32, dtype=dtype)
        o = fa.flash_attn_varlen_qkvpacked_func(qkv, cu_q, 12)
        self.close(o[5:], formula(*(x[None, 5:] for x in qkv.unbind(1)))[0][0], dtype)
        o = fa.flash_attn_varlen_kvpacked_func(q, torch.stack((k, v), 1), cu_q, cu_k, 12, 18)
        self.close(o[:5], formula(q[None, :5], k[None, :9], v[None, :9])[0][0], dtype)

    def test_alibi(self):
        dtype = dtypes[0]
        q, k, v = (normal(1, n, 2, 32, dtype=dtype) for n in (20, 30, 30))
        slopes = torch.rand(2, device=device)
        for causal in (False, True):
            o = fa.flash_attn_func(q, k, v, alibi_slopes=slopes, causal=causal)
            self.close(o, formula(q, k, v, causal=causal, slopes=slopes)[0], dtype)
        q, k, v = (normal(3, n, 2, 32, dtype=dtype) for n in (20, 30, 30))
        slopes = torch.rand(3, 2, device=device)
        o = fa.flash_attn_func(q, k, v, alibi_slopes=slopes, causal=True)
        self.close(o, formula(q, k, v, causal=True, slopes=slopes)[0], dtype)
        cu = [torch.arange(4, dtype=torch.int32, device=device) * n for n in (20, 30)]
        o = fa.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *cu, 20, 30, alibi_slopes=slopes, causal=True)
        self.close(o.unflatten(0, (3, 20)), formula(q, k, v, causal=True, slopes=slopes)[0], dtype)
        o = fa.flash_attn_with_kvcache(q[:, :1], k, v, alibi_slopes=slopes, causal=True)
        self.close(o, formula(q[:, :1], k, v, causal=True, slopes=slopes)[0], dtype)

    def test_max_logits(self):
        dtype = dtypes[0]
        q, k, v = normal(2, 20, 4, 32, dtype=dtype, grad=True), normal(2, 30, 2, 32, dtype=dtype), normal(2, 30, 2, 32, dtype=dtype)
        s = q.detach().double().transpose(1, 2) @ k.double().repeat_interleave(2, 2).permute(0, 2, 3, 1) * 32**-0.5
        past = torch.arange(30, device=device)[None] > torch.arange(20, device=device)[:, None] + 10
        top = torch.zeros(4, device=device)
        o = fa.flash_attn_func(q, k, v, causal=True, max_logits=top)
        self.assertLess(float((top - s.masked_fill(past, -float("inf")).amax((0, 2, 3))).abs().max()), 1e-4)
        o.sum().backward()
        cu = [torch.arange(3, dtype=torch.int32, device=device) * n for n in (20, 30)]
        fa.flash_attn_varlen_func(*(x.detach().flatten(0, 1) for x in (q, k, v)), *cu, 20, 30, max_logits=top)
        self.assertLess(float((top - s.amax((0, 2, 3))).abs().max()), 1e-4)
        fa.flash_attn_func(q[:, :0], k, v, max_logits=top)
        self.assertTrue(torch.equal(top, torch.full_like(top, -float("inf"))))

    def test_dropout(self):
        q, k, v = (normal(1, s, 2, 32, dtype=dtypes[0]) for s in (20, 30, 30))
        torch.manual_seed(3)
        a = fa.flash_attn_func(q, k, v, 0.5)
        b = fa.flash_attn_func(q, k, v, 0.5)
        torch.manual_seed(3)
        self.assertTrue(torch.equal(a, fa.flash_attn_func(q, k, v, 0.5)))
        self.assertFalse(torch.equal(a, b))
        if cuda:  # each replay of a graph draws a mask
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = fa.flash_attn_func(q, k, v, 0.5)
            drawn = []
            for _ in range(4):
                graph.replay()
                drawn.append(o.clone())
            for i in range(4):
                for j in range(i):
                    self.assertFalse(torch.equal(drawn[i], drawn[j]))

    def test_cache(self):
        dtype = dtypes[0]
        q, k, v = normal(2, 3, 4, 64, dtype=dtype), normal(2, 3, 2, 64, dtype=dtype), normal(2, 3, 2, 64, dtype=dtype)
        caches = [normal(2, 40, 2, 64, dtype=dtype) for _ in range(2)]
        o, lse = fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=20, causal=True, return_softmax_lse=True)
        self.assertTrue(torch.equal(caches[0][:, 20:23], k) and torch.equal(caches[1][:, 20:23], v))
        want, want_lse = formula(q, *(x[:, :23] for x in caches), causal=True)
        self.close(o, want, dtype)
        self.close(lse, want_lse, torch.float32 if dtype == torch.float32 else torch.float16)
        self.close(fa.flash_attn_with_kvcache(q, *caches), formula(q, *caches)[0], dtype)
        o = fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=integers(5, 30), causal=True)
        for i, n in enumerate((8, 33)):
            self.assertTrue(torch.equal(caches[0][i, n - 3 : n], k[i]))
            self.close(o[i : i + 1], formula(q[i : i + 1], *(x[i : i + 1, :n] for x in caches), causal=True)[0], dtype)

    def test_rotary(self):
        dtype = dtypes[0]
        q, k, v = normal(2, 3, 4, 64, dtype=dtype), normal(2, 3, 2, 64, dtype=dtype), normal(2, 3, 2, 64, dtype=dtype)
        angle, before = torch.rand(50, 24, device=device) * 6, q.clone()
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)

        def turned(x, first, step, interleaved):
            x = x.clone().float()
            for i in range(x.shape[1]):
                for j in range(24):
                    one, two = (2 * j, 2 * j + 1) if interleaved else (j, j + 24)
                    z = torch.complex(x[:, i, :, one], x[:, i, :, two])
                    z = z * torch.complex(cos[first + step * i, j].float(), sin[first + step * i, j].float())
                    x[:, i, :, one], x[:, i, :, two] = z.real, z.imag
            return x.to(dtype)

        of = integers(3, 1)
        for i, (causal, interleaved) in enumerate(itertools.product((True, False), repeat=2)):
            caches = [normal(2, 40, 2, 64, dtype=dtype) for _ in range(2)]
            tables = (cos, sin) if i % 2 else (cos.float(), sin.float())
            o = fa.flash_attn_with_kvcache(q, *caches, k, v, *tables, 20, causal=causal, rotary_interleaved=interleaved)
            self.close(caches[0][:, 20:23], turned(k, 20, 1, interleaved).double(), dtype)
            self.assertTrue(torch.equal(caches[1][:, 20:23], v))
            want = formula(turned(q, 20, int(causal), interleaved), *(x[:, :23] for x in caches), causal=causal)[0]
            self.close(o, want, dtype)
            self.assertTrue(torch.equal(q, before))
            # More rows of Q than new ones, a length of each sequence, and rows with memory of others in between.
            more, both = normal(2, 5, 4, 64, dtype=dtype), normal(5, 40, 2, 2, 64, dtype=dtype)
            caches = both.unbind(2)
            window = (-1, -1) if causal else (5, -1)
            o = fa.flash_attn_with_kvcache(more, *caches, k, v, cos, sin, integers(20, 9), of, causal=causal, window_size=window, rotary_interleaved=interleaved)
            for b, n in enumerate((20, 9)):
                one = slice(b, b + 1)
                held = [x[of[b], : n + 3][None] for x in caches]
                self.close(held[0][:, n:], turned(k[one], n, 1, interleaved).double(), dtype)
                self.close(o[one], formula(turned(more[one], n, 1, interleaved), *held, causal=causal, window=window)[0], dtype)
            pools, table = [normal(7, 16, 2, 64, dtype=dtype) for _ in range(2)], integers([4, 1, 6], [5, 0, 2])
            o = fa.flash_attn_with_kvcache(more[:, :1], *pools, k, v, cos, sin, integers(14, 31), block_table=table, rotary_interleaved=interleaved)
            for b, n in enumerate((14, 31)):
                one = slice(b, b + 1)
                held = [x[table[b].long()].flatten(0, 1)[None, : n + 3] for x in pools]
                self.close(held[0][:, n:], turned(k[one], n, 1, interleaved).double(), dtype)
                self.assertTrue(torch.equal(held[1][:, n:], v[one]))
                self.close(o[one], formula(turned(more[one, :1], n, 0, interleaved), *held)[0], dtype)

    def test_pages(self):
        dtype = dtypes[0]
        q, k, v = (normal(2, 3, heads, 64, dtype=dtype) for heads in (4, 2, 2))
        pools = [normal(9, 16, 2, 64, dtype=dtype) for _ in range(2)]
        table = integers([4, 1, 7], [8, 0, 2])
        for length in (30, integers(14, 45)):
            o = fa.flash_attn_with_kvcache(q, *pools, k, v, cache_seqlens=length, block_table=table, causal=True)
            for i in range(2):
                n = (length if isinstance(length, int) else int(length[i])) + 3
                keys, values = (x[table[i].long()].flatten(0, 1)[None, :n] for x in pools)
                self.assertTrue(torch.equal(keys[0, n - 3 :], k[i]) and torch.equal(values[0, n - 3 :], v[i]))
                self.close(o[i : i + 1], formula(q[i : i + 1], keys, values, causal=True)[0], dtype)
        caches, of = [normal(5, 20, 2, 64, dtype=dtype) for _ in range(2)], integers(3, 1)
        o = fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=10, cache_batch_idx=of)
        self.assertTrue(torch.equal(caches[0][of.long(), 10:13], k))
        self.close(o, formula(q, *(x[of.long(), :13] for x in caches))[0], dtype)
        cu_q, cu_k = integers(0, 2, 6), integers(0, 40, 57)
        o = fa.flash_attn_varlen_func(q.flatten(0, 1), *pools, cu_q, cu_k, 4, 40, causal=True, block_table=table)
        for i in range(2):
            keys, values = (x[table[i].long()].flatten(0, 1)[None, : cu_k[i + 1] - cu_k[i]] for x in pools)
            rows = slice(int(cu_q[i]), int(cu_q[i + 1]))
            self.close(o[rows], formula(q.flatten(0, 1)[None, rows], keys, values, causal=True)[0][0], dtype)
        if not cuda:
            with self.assertRaisesRegex(ValueError, "3 new rows in 48 positions"):
                fa.flash_attn_with_kvcache(q, *pools, k, v, cache_seqlens=integers(14, 46), block_table=table)
        with self.assertRaisesRegex(NotImplementedError, "gradient"):
            fa.flash_attn_varlen_func(normal(6, 4, 64, dtype=dtype, grad=True), *pools, cu_q, cu_k, 4, 40, block_table=table)

    def test_transformers_function(self):
        module = torch.nn.Module()
        module.is_causal = True
        dtype = dtypes[0]
        q, k = normal(2, 4, 9, 64, dtype=dtype), normal(2, 2, 9, 64, dtype=dtype)
        rows = [x.transpose(1, 2) for x in (q, k, k)]
        o, none = hf.attention(module, q, k, k, None, scaling=0.2)
        self.assertIsNone(none)
        self.close(o, formula(*rows, causal=True, scale=0.2)[0], dtype)
        o = hf.attention(module, q[:, :, -1:], k, k)[0]
        self.close(o, formula(rows[0][:, -1:], *rows[1:])[0], dtype)
        sinks, leaf = normal(4, dtype=dtype), q.clone().requires_grad_()
        o, want = hf.attention(module, leaf, k, k, s_aux=sinks)[0], formula(leaf.transpose(1, 2), *rows[1:], causal=True, sinks=sinks)[0]
        self.close(o, want, dtype)
        self.close(*(torch.autograd.grad(x.double().sum(), leaf)[0] for x in (o, want)), dtype)
        with self.assertRaisesRegex(NotImplementedError, "the gradient of s_aux"):
            hf.attention(module, q, k, k, s_aux=sinks.clone().requires_grad_())
        with self.assertRaisesRegex(ValueError, "s_aux has shape"):
            hf.attention(module, q, k, k, s_aux=sinks[:2])
        with self.assertRaisesRegex(NotImplementedError, "position_bias"):
            hf.attention(module, q, k, k, position_bias=q)
        with self.assertRaisesRegex(NotImplementedError, "attention_mask"):
            hf.attention(module, q, k, k, torch.ones(2, 1, 9, 9, device=device))
        o = hf.attention(module, q, k, k, sliding_window=3, softcap=4.0)[0]
        self.close(o, formula(*rows, causal=True, window=(2, -1), softcap=4.0)[0], dtype)
        for pad in (slice(0, 4), slice(6, 9)):  # on the left and on the right
            mask = torch.ones(2, 9, dtype=torch.int64, device=device)
            mask[1, pad] = 0
            leaf = q.clone().requires_grad_()
            o = hf.attention(module, leaf, k, k, mask)[0]
            o.sum().backward()
            seen = mask[1].bool()
            self.close(o[:1], formula(*(x[:1] for x in rows), causal=True)[0], dtype)
            self.close(o[1:][:, seen], formula(*(x[1:][:, seen] for x in rows), causal=True)[0], dtype)
            self.assertEqual(float(o[1][~seen].abs().sum()) + float(leaf.grad[1][:, ~seen].abs().sum()), 0)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_transformers_model(self):
        import transformers

        hf.register()
        config = transformers.LlamaConfig(
            vocab_size=100, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        model = transformers.AutoModelForCausalLM.from_config(config).to(device=device, dtype=dtypes[0]).eval()
        tokens = torch.randint(0, 100, (2, 70), device=device)
        got = []
        for name in ("eager", "vkattn"):
            model.set_attn_implementation(name)
            with torch.no_grad():
                got.append(model(tokens).logits)
        self.close(got[1], got[0].double(), dtypes[0])
        made = []
        for name in ("eager", "vkattn"):
            model.set_attn_implementation(name)
            made.append(model.generate(tokens[:, :20], max_new_tokens=8, do_sample=False, pad_token_id=0))
        self.assertEqual(made[0].shape, made[1].shape)
        model.train()
        model(tokens, labels=tokens).loss.backward()
        self.assertTrue(all(torch.isfinite(p.grad).all() for p in model.parameters()))

    def test_views(self):
        dtype = dtypes[0]
        big = normal(1, 4, 33, 64, dtype=dtype)  # [batch, heads, rows, dim]
        x = big.transpose(1, 2)
        want = formula(x, x, x)[0]
        self.close(fa.flash_attn_func(x, x, x), want, dtype)
        columns = normal(1, 33, 4, 128, dtype=dtype)[..., ::2]  # rows that are not contiguous
        self.close(fa.flash_attn_func(columns, columns, columns), formula(columns, columns, columns)[0], dtype)
        one = normal(1, 33, 1, 64, dtype=dtype)
        self.close(fa.flash_attn_func(x, one.expand(1, 33, 4, 64), x), formula(x, one.expand(1, 33, 4, 64), x)[0], dtype)
        expanded = normal(1, 1, 1, 64, dtype=dtype).expand(1, 33, 4, 64)
        self.close(fa.flash_attn_func(x, expanded, x), formula(x, expanded, x)[0], dtype)

    def test_gradients_of_views_and_of_calls_like_earlier_ones(self):
        dtype = dtypes[0]
        packed = normal(2, 21, 3, 4, 64, dtype=dtype)  # q, k and v of it are not dense
        wide = normal(2, 4, 21, 64, dtype=dtype).transpose(1, 2)
        inputs = {"dense": [normal(2, 21, 4, 64, dtype=dtype) for _ in range(3)], "packed": packed.unbind(2), "wide": [wide] * 3,
                  "one row": [normal(1, 1, 2, 64, dtype=dtype)] * 3}  # fmt: skip
        for name, x in inputs.items():
            leaves = [t.detach().requires_grad_() for t in x]
            want = formula(*leaves, causal=True)[0]
            shape = want.shape
            gradients = {"dense": normal(*shape, dtype=dtype), "expanded": normal(1, 1, 1, 1, dtype=dtype).expand(shape),
                         "wide": normal(shape[0], shape[2], shape[1], shape[3], dtype=dtype).transpose(1, 2)}  # fmt: skip
            for of, d_o in gradients.items():
                for call in range(2):
                    with self.subTest(name, gradient=of, call=call):
                        o = fa.flash_attn_func(*leaves, causal=True)
                        self.close(o, want, dtype)
                        for got, w in zip(torch.autograd.grad(o, leaves, d_o), torch.autograd.grad(want, leaves, d_o.double(), retain_graph=True)):
                            self.close(got, w, dtype)
            transposed = [t.transpose(1, 2) for t in leaves]
            for call in range(2):
                with self.subTest(name, function="sdpa", call=call):
                    o = vkattn.sdpa(*transposed).transpose(1, 2)
                    self.close(o, formula(*leaves)[0], dtype)
                    for got, w in zip(torch.autograd.grad(o.sum(), leaves), torch.autograd.grad(formula(*leaves)[0].sum(), leaves)):
                        self.close(got, w, dtype)

    def test_second_derivatives_are_refused(self):
        q = normal(1, 5, 2, 64, dtype=dtypes[0], grad=True)
        for _ in range(2):
            (d_q,) = torch.autograd.grad(fa.flash_attn_func(q, q, q).float().square().sum(), q, create_graph=True)
            with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
                d_q.sum().backward()

    def test_no_gradient_of_the_output(self):
        class Stop(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, _):
                return None

        for options in ({}, {"dropout_p": 0.1}):
            q = normal(1, 5, 2, 64, dtype=dtypes[0], grad=not (cuda and options))
            if q.requires_grad:
                Stop.apply(fa.flash_attn_func(q, q, q, **options)).float().sum().backward()
                self.assertIsNone(q.grad)

    def test_empty(self):
        q, k = normal(2, 0, 4, 64, dtype=dtypes[0], grad=True), normal(2, 9, 4, 64, dtype=dtypes[0])
        o = fa.flash_attn_func(q, k, k)
        self.assertEqual(tuple(o.shape), (2, 0, 4, 64))
        o.sum().backward()
        o = fa.flash_attn_func(k, q.detach(), q.detach())
        self.assertEqual(float(o.abs().sum()), 0)

    def test_refusals(self):
        q = normal(1, 8, 2, 64, dtype=dtypes[0])
        cu = torch.tensor([0, 8], dtype=torch.int32, device=device)
        other = q.float() if cuda else q.half()
        for words, error, call in (
            ("torch.Tensor", TypeError, lambda: fa.flash_attn_func(1, q, q)),
            ("shape", ValueError, lambda: fa.flash_attn_func(q[0], q, q)),
            ("shapes", ValueError, lambda: fa.flash_attn_func(q, q[..., :32], q)),
            ("multiple", ValueError, lambda: fa.flash_attn_func(q, q.repeat(1, 1, 2, 1), q.repeat(1, 1, 2, 1))),
            ("float64", TypeError, lambda: fa.flash_attn_func(q.double(), q.double(), q.double())),
            ("k is of", TypeError, lambda: fa.flash_attn_func(q, other, q)),
            ("S_dmask", NotImplementedError, lambda: fa.flash_attn_func(q, q, q, 0.1, return_attn_probs=True)),
            ("alibi_slopes has shape", ValueError, lambda: fa.flash_attn_func(q, q, q, alibi_slopes=torch.ones(2, 2, device=device))),
            ("max_logits is no", TypeError, lambda: fa.flash_attn_func(q, q, q, max_logits=torch.ones(2, device=device).half())),
            ("max_logits has shape", ValueError, lambda: fa.flash_attn_func(q, q, q, max_logits=torch.ones(1, device=device))),
            ("page size", ValueError, lambda: fa.flash_attn_varlen_func(q[0], q[0], q[0], cu, cu, 8, 8, block_table=cu)),
            ("block_table has shape", ValueError, lambda: fa.flash_attn_varlen_func(q[0], q, q, cu, cu, 8, 8, block_table=cu)),
            ("exclude", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, cache_batch_idx=cu, block_table=cu)),
            ("cache_leftpad", NotImplementedError, lambda: fa.flash_attn_with_kvcache(q, q, q, cache_leftpad=cu)),
            ("at most 32", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, q[0, :, 0], q[0, :, 0], 0)),
            ("int32", TypeError, lambda: fa.flash_attn_varlen_func(q[0], q[0], q[0], cu.long(), cu, 8, 8)),
            ("one length", ValueError, lambda: fa.flash_attn_varlen_func(q[0], q[0], q[0], cu[:1], cu, 8, 8)),
            ("go together", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, rotary_cos=q)),
            ("go together", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q)),
            ("of 8 keys", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, cache_seqlens=4)),
            ("int32", TypeError, lambda: fa.flash_attn_with_kvcache(q, q, q, cache_seqlens=cu[1:].long())),
            ("k is on meta", ValueError, lambda: fa.flash_attn_func(q, q.to("meta"), q)),
            ("tensors on meta", NotImplementedError, lambda: fa.flash_attn_func(*[q.to("meta")] * 3)),
            ("v_cache is on meta", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q.to("meta"), q, q, cache_seqlens=0)),
            ("cache_seqlens is on meta", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, cache_seqlens=cu[1:].to("meta"))),
            ("k is of", TypeError, lambda: fa.flash_attn_with_kvcache(q, q, q, other, other, cache_seqlens=0)),
            ("k_cache is of", TypeError, lambda: fa.flash_attn_with_kvcache(q, other, other, q, q, cache_seqlens=0)),
            ("k has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q[..., :32], q, cache_seqlens=0)),
            ("k has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q[:, :, :1], q[:, :, :1], cache_seqlens=0)),
            ("v has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q[:, :4], cache_seqlens=0)),
            ("v_cache has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q[:, :4], q[:, :4], q[:, :4], cache_seqlens=0)),
            ("k_cache has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q.repeat(2, 1, 1, 1), q.repeat(2, 1, 1, 1), q, q, cache_seqlens=0)),
            ("k_cache has strides", ValueError, lambda: fa.flash_attn_with_kvcache(q, *[q.repeat(1, 1, 1, 2)[..., ::2]] * 2, q, q, cache_seqlens=0)),
            ("overlapping", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, cache_seqlens=0)),
            ("new_rows is 0", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q[:, :0], q[:, :0], cache_seqlens=0)),
            ("at least 8 positions", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, q[0, :7, 0, :9], q[0, :7, 0, :9], 0)),
            ("rotary_cos is a int", TypeError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, 1, 1, 0)),
            ("rotary_sin has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, q[0, :, 0, :9], q[0, :, 0, :8], 0)),
            ("rotary_cos is of", TypeError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, *[q[0, :, 0, :9].double()] * 2, 0)),
            ("cache_seqlens has shape", ValueError, lambda: fa.flash_attn_with_kvcache(q, q, q, q, q, cache_seqlens=cu)),
            ("softcap", ValueError, lambda: fa.flash_attn_func(q, q, q, softcap=-1.0)),
            ("enable_gqa", ValueError, lambda: vkattn.sdpa(q, q[:, :2], q[:, :2])),
            ("exclude", ValueError, lambda: vkattn.sdpa(q, q, q, torch.ones(2, 2, device=device), is_causal=True)),
            ("4 of all", NotImplementedError, lambda: vkattn.sdpa(q, q, q[0])),
        ):  # fmt: skip
            with self.subTest(words), self.assertRaisesRegex(error, words):
                call()
        if cuda:
            with self.assertRaisesRegex(ValueError, "is on cpu"):
                fa.flash_attn_func(q, q.cpu(), q)
            with self.assertRaisesRegex(NotImplementedError, "no dropout"):
                fa.flash_attn_func(q.clone().requires_grad_(), q, q, dropout_p=0.5).sum().backward()
            with self.assertRaisesRegex(NotImplementedError, "it takes no softcap"):
                fa.flash_attn_func(q.float(), q.float(), q.float(), softcap=3.0)
            with self.assertRaisesRegex(NotImplementedError, "it takes no lengths"):
                fa.flash_attn_varlen_func(*[q[0].float()] * 3, cu, cu, 8, 8)

    def test_threads(self):
        q = normal(2, 65, 4, 64, dtype=dtypes[0])
        want, wrong = fa.flash_attn_func(q, q, q), []

        def work():
            for _ in range(20):
                if not torch.equal(fa.flash_attn_func(q, q, q), want):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    def test_exit_with_work_in_flight(self):
        code = f"""
import torch
from vkattn.flash_attn import flash_attn_func
q = torch.ones(1, {2048 if cuda else 256}, 4, 64, device="{device}", dtype=torch.{'float16' if cuda else 'float32'})
for _ in range({50 if cuda else 1}):
    flash_attn_func(q, q, q)
"""
        subprocess.run([sys.executable, "-c", code], check=True)


class Sdpa(Case):
    def test_sdpa(self):
        dtype = dtypes[0]
        q, k, v = normal(2, 4, 20, 64, dtype=dtype, grad=True), normal(2, 4, 30, 64, dtype=dtype), normal(2, 4, 30, 64, dtype=dtype)
        flip = [x.transpose(1, 2) for x in (q, k, v)]
        o = vkattn.sdpa(q, k, v)
        want = formula(*flip)[0].transpose(1, 2)
        self.close(o, want, dtype)
        self.close(torch.autograd.grad(o.float().sum(), q)[0], torch.autograd.grad(want.sum(), q)[0], dtype)
        seen = torch.ones(20, 30, device=device).tril().bool()
        self.close(vkattn.sdpa(q, k, v, is_causal=True, scale=0.5), formula(*flip, scale=0.5, visible=seen)[0].transpose(1, 2), dtype)
        g = vkattn.sdpa(q, k[:, :2], v[:, :2], enable_gqa=True)
        self.close(g, formula(flip[0], flip[1][:, :, :2], flip[2][:, :, :2])[0].transpose(1, 2), dtype)
        self.close(vkattn.sdpa(q[0], k[0], v[0]), want[0], dtype)

    def test_masks(self):
        dtype = dtypes[0]
        q, k, v = normal(2, 2, 9, 32, dtype=dtype), normal(2, 2, 12, 32, dtype=dtype), normal(2, 2, 12, 32, dtype=dtype)
        flip = [x.transpose(1, 2) for x in (q, k, v)]
        seen = torch.rand(9, 12, device=device) > 0.3
        self.close(vkattn.sdpa(q, k, v, seen), formula(*flip, visible=seen)[0].transpose(1, 2), dtype)
        bias = normal(2, 1, 1, 12, dtype=dtype)
        self.close(vkattn.sdpa(q, k, v, bias), formula(*flip, bias=bias)[0].transpose(1, 2), dtype)
        with self.assertRaisesRegex(NotImplementedError, "gradient of attn_mask"):
            vkattn.sdpa(q, k, v, bias.requires_grad_())


@unittest.skipUnless(newer, "PyTorch 2.4 or newer")
class Operators(Case):
    def test_opcheck(self):
        from vkattn import _torch

        q = normal(1, 4, 33, 64, dtype=dtypes[0], grad=True)
        rest = (None, None, None, None, 33, 33, _torch._TOP_LEFT, -1, -1, 0.0, 0.125, None, None, None, 0.0, None, None)
        k, v = (normal(1, 4, 33, 64, dtype=dtypes[0]) for _ in range(2))
        torch.library.opcheck(torch.ops.vkattn.forward.default, (q, k, v, *rest))
        plain = torch.ops.vkattn.plain_forward.default
        with torch.no_grad():
            torch.library.opcheck(plain, (q, k, v, *rest[6:11]))
            o, lse = plain(q, k, v, *rest[6:11])
            torch.library.opcheck(torch.ops.vkattn.plain_backward.default, (torch.ones_like(o), o, lse, q, k, v, *rest[6:11]))

    def test_append(self):
        dtype = dtypes[0]
        q, k, v, *caches = (normal(2, n, h, 64, dtype=dtype) for n, h in ((3, 4), (3, 2), (3, 2), (40, 2), (40, 2)))
        cos, sin, used = normal(40, 16, dtype=dtype), normal(40, 16, dtype=dtype), integers(4, 9)
        append = torch.ops.vkattn.append.default
        torch.library.opcheck(append, (q, k, v, *caches, used, None, cos, sin, True, False))
        torch.library.opcheck(append, (q, k, v, *caches, used, integers([1], [0]), None, None, True, True))

        def step(q, k, v, cache, values, used):
            return fa.flash_attn_with_kvcache(q * 2, cache, values, k, v, cos, sin, used, causal=True)

        compiled, others = torch.compile(step, fullgraph=True), [x.clone() for x in caches]
        for used in (integers(4, 9), integers(11, 0)):
            self.close(compiled(q, k, v, *caches, used), step(q, k, v, *others, used), dtype)
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(caches, others)))

    def test_operators_without_python(self):
        from vkattn import _torch

        if not _torch._direct:
            self.skipTest("PyTorch older than 2.9")
        ops, real, entered = torch.ops.vkattn, _torch._plain, []

        def counted(*x):
            entered.append(1)
            return real(*x)

        def alike(function, reference, x, calls):
            del entered[:]
            got = function(*x, *options)
            self.assertEqual(len(entered), calls)
            for a, b in zip(got, reference(*x, *options)):
                self.assertTrue(torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype)
            return got

        forward, backward = (ops.plain_forward.default, ops.python_forward.default), (ops.plain_backward.default, ops.python_backward.default)
        options = (_torch._BOTTOM_RIGHT, -1, -1, 0.0, 0.171)  # of no other test
        dtype = dtypes[0]
        layouts = {
            "dense": lambda: [normal(2, h, s, 64, dtype=dtype) for h, s in ((4, 21), (2, 30), (2, 30))],
            "rows first": lambda: [normal(2, 21, 4, 64, dtype=dtype).transpose(1, 2) for _ in range(3)],
            "packed": lambda: [x.transpose(1, 2) for x in normal(2, 21, 3, 4, 64, dtype=dtype).unbind(2)],
            "mixed": lambda: [normal(2, 21, 4, 64, dtype=dtype).transpose(1, 2), normal(2, 2, 30, 64, dtype=dtype),
                              normal(2, 30, 2, 96, dtype=dtype).transpose(1, 2)],
        }  # fmt: skip
        _torch._plain = counted
        try:
            for name, make in layouts.items():
                with self.subTest(name):
                    for calls in (1, 0, 0):
                        x = make()
                        o, lse = alike(*forward, x, calls)
                        alike(*backward, [torch.randn_like(o), o, lse, *x], 0)
                    d_o = normal(1, 1, 1, 1, dtype=dtype).expand(o.shape)
                    alike(*backward, [d_o, o, lse, *x], 1)
                    alike(*backward, [torch.randn_like(o), o, lse.transpose(1, 2).contiguous().transpose(1, 2), *x], 1)
                    counts = [t._use_count() for t in (o, lse, *x)]
                    alike(*forward, x, 0)
                    alike(*backward, [torch.randn_like(o), o, lse, *x], 0)
                    self.assertEqual(counts, [t._use_count() for t in (o, lse, *x)])
                    usual, options = options, (_torch._NONE, *options[1:])
                    alike(*forward, x, 1)
                    alike(*forward, x, 0)
                    options = usual
                    _torch._plains.clear()  # its calls are destroyed
                    alike(*forward, x, 1)
                    alike(*forward, x, 0)
            wrong = []

            def work(x, want):
                for _ in range(30):
                    if not torch.equal(ops.plain_forward.default(*x, *options)[0], want):
                        wrong.append(1)

            threads = [threading.Thread(target=work, args=(x, ops.python_forward.default(*x, *options)[0])) for x in (x, make(), layouts["dense"]())]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertFalse(wrong)
            with self.assertRaises(RuntimeError):
                ops.plain_forward.default(x[0], x[1][..., :32], x[2], *options)
            alike(*forward, x, 0)
        finally:
            _torch._plain = real

    def test_compile(self):
        def step(q, k, v):
            return (fa.flash_attn_func(q * 2, k, v, causal=True) + 1).float().pow(2).mean()

        compiled = torch.compile(step, fullgraph=True)
        for rows in (64, 96, 128):  # the second compiles for any length
            q, k, v = (normal(2, rows, 4, 64, dtype=dtypes[0], grad=True) for _ in range(3))
            want = torch.autograd.grad(step(q, k, v), (q, k, v))
            got = torch.autograd.grad(compiled(q, k, v), (q, k, v))
            for a, b in zip(got, want):
                self.close(a, b, dtypes[0])
            with torch.no_grad():
                self.close(compiled(q, k, v), step(q, k, v), dtypes[0])
        with_lse = torch.compile(lambda q: fa.flash_attn_func(q, q, q, return_attn_probs=True)[:2], fullgraph=True)
        for a, b in zip(with_lse(q), fa.flash_attn_func(q, q, q, return_attn_probs=True)):
            self.close(a, b, dtypes[0])


@unittest.skipUnless(cuda, "a CUDA device")
class Streams(Case):
    def test_streams(self):
        q = normal(2, 512, 8, 64, dtype=torch.float16)
        want = fa.flash_attn_func(q, q, q, causal=True)
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            for _ in range(50):
                x = q + 0  # behind work of the same stream
                o = fa.flash_attn_func(x, x, x, causal=True)
        torch.cuda.current_stream().wait_stream(s)
        self.assertTrue(torch.equal(o, want))

    def test_graph_of_a_cache(self):
        q, k, v = (normal(3, 1, h, 64, dtype=torch.bfloat16) for h in (8, 2, 2))
        cos, sin = normal(96, 32, dtype=torch.bfloat16), normal(96, 32, dtype=torch.bfloat16)
        pools, caches, table, of = *([normal(9, n, 2, 64, dtype=torch.bfloat16) for _ in range(2)] for n in (32, 96)), integers([4, 1, 7], [8, 0, 2], [3, 5, 6]), integers(6, 2, 0)
        used = integers(0, 40, 80)

        def step(pools, caches):
            o = fa.flash_attn_with_kvcache(q, *pools, k, v, cos, sin, used, block_table=table, causal=True)
            o = o, fa.flash_attn_with_kvcache(q, *caches, k, v, cos, sin, used, of, rotary_interleaved=False)
            used.add_(1)
            return o

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(pools, caches)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step(pools, caches)
        others = [[x.clone() for x in y] for y in (pools, caches)]
        torch.cuda.set_sync_debug_mode("error")  # neither a replay nor a call waits
        try:
            for _ in range(12):
                for x in (q, k, v):
                    x.normal_()
                graph.replay()
                used.sub_(1)
                want = step(*others)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self.assertTrue(all(torch.equal(a, b) for a, b in zip((*out, *pools, *caches), (*want, *others[0], *others[1]))))
        # Rows that a cache has no room for are not written.
        last = [x.clone() for x in caches]
        fa.flash_attn_with_kvcache(q, *caches, k, v, cos, sin, integers(96, -1, 1000), of)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(caches, last)))

    def test_graph(self):
        q, k, v = (normal(2, 300, 4, 128, dtype=torch.bfloat16, grad=True) for _ in range(3))
        d_o = normal(2, 300, 4, 128, dtype=torch.bfloat16)

        def step():
            o = fa.flash_attn_func(q, k, v, causal=True)
            return (o, *torch.autograd.grad(o, (q, k, v), d_o))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        for _ in range(20):
            with torch.no_grad():
                for x in (q, k, v, d_o):
                    x.copy_(torch.randn_like(x))
            graph.replay()
            self.assertTrue(all(torch.equal(a, b) for a, b in zip(out, step())))


if __name__ == "__main__":
    unittest.main()
