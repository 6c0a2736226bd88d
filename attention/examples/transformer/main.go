// Command transformer generates text with a small transformer of random weights, whose tokens are bytes: a system prompt
// is prefilled once and forked for three users, whose questions are prefilled in mixed batches with the tokens of
// others, and each gets 64 tokens. The code is the same for a GPU and for the CPU. The library computes the cache, the
// rotary embedding and attention, a cascade over the shared prompt; the host computes the rest in float32, with a
// loop for the matrix products (model.go).
package main

import (
	"context"
	"fmt"
	"log"
	"math"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	_ "vkattn/cudapath" // tiers cubin and cuda, where they are faster
)

const generated = 64 // tokens of each user

const system = "You are a helpful model of two layers."

var users = []user{{text: "Who are you?"}, {text: "What do two and two make?"}, {text: "Why?", arrives: 8}}

type user struct {
	text     string // the question, and then the answer
	arrives  int    // step
	sequence *kvcache.Sequence
	next     string      // tokens of the next step
	logits   [][]float32 // of each token of the answer
	margin   float32     // least distance of the two largest logits
}

var options attention.Options

func main() {
	dev, err := attention.Open(options) // the best GPU, or the CPU
	check(err)
	defer dev.Close()
	answers, err := generate(dev, newModel())
	check(err)
	for i, u := range answers {
		// Devices round differently, but their logits differ by less than half of this margin: the tokens are the same.
		fmt.Printf("%v: %s -> %x, logits at least %.3f apart\n", dev, users[i].text, u.text[len(users[i].text):], u.margin)
	}
}

// generate runs all steps.
func generate(dev *attention.Device, m *model) ([]user, error) {
	cache, err := kvcache.New(dev, kvcache.Config{HeadDim: dim, HeadsKV: headsKV, Layers: layers, PageSize: 16, Pages: 32,
		Rotary:  kvcache.Rotary{Dim: dim, Style: kvcache.RotaryHalfSplit},
		Cascade: 1}) // by default so few shared keys are no cascade
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	op, err := attention.New(dev, attention.Config{HeadDim: dim, Causal: attention.BottomRight})
	if err != nil {
		return nil, err
	}
	defer op.Close()
	e := engine{dev, cache, op, m}
	prompt := &user{sequence: cache.Sequence(), next: system}
	if _, err := e.step([]*user{prompt}); err != nil {
		return nil, err
	}
	all := append([]user(nil), users...)
	for step, done := 0, 0; done < len(all); step++ {
		var batch []*user // questions of those who arrive, and one token of the others
		for i := range all {
			u := &all[i]
			if step == u.arrives {
				if u.sequence, err = prompt.sequence.Fork(); err != nil {
					return nil, err
				}
				u.next = u.text
			}
			if step >= u.arrives && len(u.logits) < generated {
				batch = append(batch, u)
			}
		}
		logits, err := e.step(batch)
		if err != nil {
			return nil, err
		}
		for i, u := range batch {
			if u.take(logits[i*vocabulary:][:vocabulary]); len(u.logits) == generated {
				u.sequence.Free()
				done++
			}
		}
	}
	return all, nil
}

// take appends the token of the largest logit.
func (u *user) take(logits []float32) {
	best, second := 0, float32(math.Inf(-1))
	for i, x := range logits[1:] {
		if x > logits[best] {
			best, second = i+1, logits[best]
		} else {
			second = max(second, x)
		}
	}
	if margin := logits[best] - second; len(u.logits) == 0 || margin < u.margin {
		u.margin = margin
	}
	u.next = string([]byte{byte(best)})
	u.text, u.logits = u.text+u.next, append(u.logits, logits)
}

type engine struct {
	dev   *attention.Device
	cache *kvcache.Cache
	op    *attention.Op
	m     *model
}

// step appends the next tokens of each user and returns the logits of what follows them, [user, vocabulary].
func (e *engine) step(batch []*user) ([]float32, error) {
	var rows []kvcache.NewRows
	tokens := ""
	for _, u := range batch {
		rows = append(rows, kvcache.NewRows{Sequence: u.sequence, Rows: len(u.next)})
		tokens += u.next
	}
	step, err := e.cache.Begin(rows...)
	if err != nil {
		return nil, err
	}
	var x []float32 // [row, width]
	for _, t := range []byte(tokens) {
		x = append(x, e.m.embedding[int(t)*width:][:width]...)
	}
	for i := range e.m.layers {
		l := &e.m.layers[i]
		h := norm(x, l.attentionGain)
		o, err := e.attend(step, i, linear(h, l.q, width), linear(h, l.k, width), linear(h, l.v, width))
		if err != nil {
			return nil, err
		}
		add(x, linear(o, l.o, heads*dim))
		h = norm(x, l.mlpGain)
		add(x, linear(gated(linear(h, l.gate, width), linear(h, l.up, width)), l.down, hidden))
	}
	var last []float32
	end := 0
	for _, r := range rows {
		end += r.Rows
		last = append(last, x[(end-1)*width:end*width]...)
	}
	return linear(norm(last, e.m.gain), e.m.head, width), nil
}

// attend is the attention of a layer: q and the result are [row, heads, dim], k and v [row, headsKV, dim].
func (e *engine) attend(step *kvcache.Step, layer int, q, k, v []float32) ([]float32, error) {
	var list [4]attention.Tensor // Q, K, V, O
	for i, x := range [][]float32{q, k, v, q} {
		n := len(x) / step.Rows() / dim
		t, err := e.dev.Tensor(attention.F16, 1, n, step.Rows(), dim)
		if err != nil {
			return nil, err
		}
		defer t.Close()
		if err := t.SetFloats(x); err != nil {
			return nil, err
		}
		t.Strides = attention.BSHD(n, step.Rows(), dim) // of the numbers that lie there
		list[i] = t
	}
	if err := step.Append(layer, kvcache.LayerRows{K: list[1], V: list[2], Q: list[0], QOut: list[0]}); err != nil {
		return nil, err
	}
	if err := step.Forward(layer, e.op, attention.Args{Q: list[0], O: list[3]}); err != nil {
		return nil, err
	}
	list[3].Strides = attention.Strides{}
	return list[3].Floats(context.Background()) // waits
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
