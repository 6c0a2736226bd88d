package score

import "math"

// Ready-made masks and score modifiers. Each is one expression, written as its source has it.

// All is And of any number of masks.
func All(mask Expr, more ...Expr) Expr {
	for _, m := range more {
		mask = And(mask, m)
	}
	return mask
}

// Causal leaves a row the keys up to its own position.
func Causal() Expr { return Le(J, I) }

// SlidingWindow leaves a row the keys from `left` before its position to `right` behind it (Longformer, Mistral).
func SlidingWindow(left, right int) Expr {
	return And(Le(Sub(I, Int(left)), J), Le(J, Add(I, Int(right))))
}

// Chunked leaves a row the keys of its own chunk of `size` keys (Llama 4).
func Chunked(size int) Expr { return Eq(Div(I, Int(size)), Div(J, Int(size))) }

// PrefixLM is causal, but the first prefix[b] keys of sequence b are left to every row (T5, PaliGemma).
func PrefixLM(prefix Table) Expr { return Or(Le(J, I), Lt(J, prefix.At(B))) }

// Documents leaves a row the keys of its own document: doc[position] is a number for each. With Images, which has the
// number of the image at a position and -1 for text, All(Causal, ...) becomes Or(Causal, Images): blocks within causal
// text (Gemma 3).
func Documents(doc Table) Expr { return Eq(doc.At(I), doc.At(J)) }

// Images leaves a row the keys of its own image; positions of text have none.
func Images(image Table) Expr { return And(Documents(image), Ge(image.At(I), Int(0))) }

// SinksWindow is causal and keeps the first `first` keys and a window of `size` (StreamingLLM).
func SinksWindow(first, size int) Expr {
	return And(Causal(), Or(Lt(J, Int(first)), Lt(Sub(I, J), Int(size))))
}

// Dilated leaves a row every `step`-th key, counted from its position (LongNet).
func Dilated(step int) Expr { return Eq(Mod(Sub(I, J), Int(step)), Int(0)) }

// Strided is causal and leaves a row the `stride` keys before its position and, before those, every `stride`-th key
// (Sparse Transformer, with the keys of its two heads in one).
func Strided(stride int) Expr { return All(Causal(), Or(SlidingWindow(stride, 0), Dilated(stride))) }

// Tree is the mask of a tree of speculative tokens behind the keys that all its rows attend to: the sequence's rows are
// its last keys, and bit c%32 of words[row, c/32] says that the row attends to the c-th of them (SpecInfer, Medusa).
func Tree(words Table) Expr {
	c := Sub(J, Sub(Keys, Rows))
	bit := And(Shr(words.At(Row, Div(c, Int(32))), Mod(c, Int(32))), Int(1))
	return Or(Lt(c, Int(0)), Ne(bit, Int(0)))
}

// NATTEN is neighborhood attention in one dimension: a row attends to `kernel` keys around its position, and near an end
// of the sequence to the `kernel` keys at that end (Neighborhood Attention Transformer). kernel is odd.
func NATTEN(kernel int) Expr { return near(I, J, Keys, kernel) }

// NATTEN2D is neighborhood attention over an image of `height` rows of `width` pixels, one after the other.
func NATTEN2D(height, width, kernelH, kernelW int) Expr {
	w := Int(width)
	return And(near(Div(I, w), Div(J, w), Int(height), kernelH), near(Mod(I, w), Mod(J, w), w, kernelW))
}

func near(i, j, n Expr, kernel int) Expr {
	half := Int(kernel / 2)
	center := Clamp(i, half, Sub(Sub(n, Int(1)), half))
	return Le(Abs(Sub(center, j)), half)
}

// Softcap is limit * tanh(x / limit) (Gemma 2).
func Softcap(x Expr, limit float64) Expr {
	l := Num(limit)
	return Mul(l, Tanh(Div(x, l)))
}

// ALiBi is x - slope * |i - j| (Train Short, Test Long).
func ALiBi(x, slope Expr) Expr { return Sub(x, Mul(slope, Abs(Sub(I, J)))) }

// T5Bias adds bias[h, bucket] to x. Buckets are those of T5's relative positions: half of them for single distances, the
// others for ranges that grow as their logarithms do, up to `far`. Bidirectional takes half of the buckets for keys behind
// the row; otherwise such keys have bucket 0.
func T5Bias(x Expr, bias Table, buckets, far int, bidirectional bool) Expr {
	distance, first := Max(Sub(I, J), Int(0)), Int(0)
	if bidirectional {
		buckets /= 2
		distance, first = Abs(Sub(I, J)), Select(Gt(J, I), Int(buckets), Int(0))
	}
	bucket := Min(distance, Int(buckets/2))
	for _, start := range t5Starts(buckets, far) {
		bucket = Add(bucket, Select(Ge(distance, Int(start)), Int(1), Int(0)))
	}
	return Add(x, bias.At(Head, Add(first, bucket)))
}

// t5Starts are the first distances of the buckets behind the first of the upper half. T5 computes a bucket by float32
// logarithms, exact + int(log(d / exact) / log(far / exact) * (buckets - exact)), where exact is buckets / 2.
func t5Starts(buckets, far int) (starts []int) {
	exact := buckets / 2
	for d := exact; d <= far && len(starts) < buckets-exact-1; d++ {
		ratio := float32(math.Log(float64(float32(d)/float32(exact)))) / float32(math.Log(float64(far)/float64(exact)))
		for n := int(ratio * float32(buckets-exact)); n > len(starts) && len(starts) < buckets-exact-1; {
			starts = append(starts, d)
		}
	}
	return starts
}
