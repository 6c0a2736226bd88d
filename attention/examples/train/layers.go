package main

import (
	"math"
	"runtime"
	"sync"
)

// parallel calls f for 0 to n-1 on all CPUs. Each call writes its own elements and sums in
// a fixed order, so results do not depend on the number of CPUs.
func parallel(n int, f func(i int)) {
	workers := min(runtime.GOMAXPROCS(0), n)
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			for i := n * w / workers; i < n*(w+1)/workers; i++ {
				f(i)
			}
		})
	}
	done.Wait()
}

// addScaled adds a times x to y.
func addScaled(y []float32, a float32, x []float32) {
	for i, v := range x[:len(y)] {
		y[i] += a * v
	}
}

// linear sets y [n, out] to x [n, in] W [in, out].
func linear(y, x, w []float32, in int) {
	out := len(w) / in
	parallel(len(x)/in, func(n int) {
		row := y[n*out:][:out]
		clear(row)
		for i, v := range x[n*in:][:in] {
			addScaled(row, v, w[i*out:][:out])
		}
	})
}

// linearBackward sets dx to dy Wᵀ and adds xᵀ dy to dW.
func linearBackward(dx, dw, dy, x, w []float32, in int) {
	out := len(w) / in
	rows := len(x) / in
	parallel(rows, func(n int) {
		for i := range in {
			var sum float32
			for j, v := range w[i*out:][:out] {
				sum += v * dy[n*out+j]
			}
			dx[n*in+i] = sum
		}
	})
	parallel(in, func(i int) {
		for n := range rows {
			addScaled(dw[i*out:][:out], x[n*in+i], dy[n*out:][:out])
		}
	})
}

// norm sets each row of y to the row of x over its root mean square, times the gain.
func norm(y, x, gain []float32) {
	d := len(gain)
	parallel(len(x)/d, func(n int) {
		r := inverseRMS(x[n*d:][:d])
		for i, g := range gain {
			y[n*d+i] = x[n*d+i] * r * g
		}
	})
}

func inverseRMS(x []float32) float32 {
	var sum float32
	for _, v := range x {
		sum += v * v
	}
	return float32(1 / math.Sqrt(float64(sum)/float64(len(x))+1e-5))
}

// normBackward adds to dx and to the gradient of the gain.
func normBackward(dx, dGain, dy, x, gain []float32) {
	d := len(gain)
	rows := len(x) / d
	scales := make([]float32, rows)
	parallel(rows, func(n int) {
		row, r := x[n*d:][:d], inverseRMS(x[n*d:][:d])
		var mean float32
		for i, v := range row {
			mean += dy[n*d+i] * gain[i] * v * r / float32(d)
		}
		for i, v := range row {
			dx[n*d+i] += r * (dy[n*d+i]*gain[i] - v*r*mean)
		}
		scales[n] = r
	})
	for n, r := range scales {
		for i := range d {
			dGain[i] += dy[n*d+i] * x[n*d+i] * r
		}
	}
}

// silu sets y to x times its logistic function.
func silu(y, x []float32) {
	parallel(len(x), func(i int) { y[i] = x[i] * logistic(x[i]) })
}

// siluBackward multiplies dy by the derivative of silu at x.
func siluBackward(dy, x []float32) {
	parallel(len(x), func(i int) {
		s := logistic(x[i])
		dy[i] *= s * (1 + x[i]*(1-s))
	})
}

func logistic(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

// crossEntropy returns the mean of -log softmax(logits)[target] over the rows and sets
// dLogits to its gradient. right[n] says whether the largest logit of row n is its target's.
func crossEntropy(dLogits, logits []float32, target []int) (mean float64, right []bool) {
	rows, classes := len(target), len(logits)/len(target)
	losses := make([]float64, rows)
	right = make([]bool, rows)
	parallel(rows, func(n int) {
		row, most := logits[n*classes:][:classes], 0
		for i, v := range row {
			if v > row[most] {
				most = i
			}
		}
		var sum float64
		for _, v := range row {
			sum += math.Exp(float64(v - row[most]))
		}
		for i, v := range row {
			dLogits[n*classes+i] = float32(math.Exp(float64(v-row[most])) / sum / float64(rows))
		}
		dLogits[n*classes+target[n]] -= 1 / float32(rows)
		losses[n], right[n] = math.Log(sum)+float64(row[most]-row[target[n]]), most == target[n]
	})
	for _, x := range losses {
		mean += x / float64(rows)
	}
	return mean, right
}
