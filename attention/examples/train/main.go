// Command train trains a small character-level transformer. Its attention runs forward and
// backward by attention.Op, on any tier; everything else is plain float32 Go.
//
//	go run ./attention/examples/train
//	go run ./attention/examples/train -tier scalar -steps 50 -check
//	go run ./attention/examples/train -tier cuda -dtype bf16
//
// The language is lines such as "hcafbde=edbfach": seven random letters and their mirror
// image. Only attention can tell a letter of the second half, so the fraction of those that
// the model predicts shows whether attention learns: all of them after about 100 steps. The
// loss cannot fall below 0.91. A run takes about a minute of CPU time on the CPU tier.
//
// The files: main.go is the training loop, language.go the text, model.go the transformer
// with its gradients, layers.go the functions that it is made of, attention.go the calls
// of the library, and check.go the verification of gradients.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"vkattn/attention"
	_ "vkattn/cudapath" // tier cuda
	"vkattn/vk"
)

type options struct {
	tier         attention.Tier
	dtype        attention.DType // of Q, K, V, O and their gradients
	print        int             // steps between lines
	steps, batch int
	seed         uint64
	rate         float64
	check        bool
}

func main() {
	o := options{batch: 16, rate: 3e-3, dtype: attention.F32}
	flag.Var(&o.tier, "tier", "implementation of attention: auto, cpu, scalar, coopmat, coopmat2 or cuda")
	flag.Func("dtype", "storage type of attention: f32, bf16 or f16 (default f32)", func(s string) (err error) {
		o.dtype, err = attention.ParseDType(s)
		return err
	})
	flag.IntVar(&o.steps, "steps", 150, "steps of Adam")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the parameters and of the text; equal seeds give equal losses")
	flag.IntVar(&o.print, "print", 20, "steps between lines")
	flag.BoolVar(&o.check, "check", false, "compare the gradients of the first step with float64 and with differences of the loss")
	flag.Parse()
	if _, err := run(os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		os.Exit(1)
	}
}

// run trains and returns the loss of every step.
func run(w io.Writer, o options) (losses []float64, err error) {
	if o.check && o.dtype != attention.F32 {
		return nil, errors.New("-check compares gradients of float32")
	}
	dev, err := openDevice(o.tier)
	if err != nil {
		return nil, err
	}
	defer dev.Close() // nil on the CPU tier
	at, err := newAttention(dev, o.tier, o.dtype, o.batch)
	if err != nil {
		return nil, err
	}
	defer at.close()
	m, err := newModel(at, o.batch, o.seed)
	if err != nil {
		return nil, err
	}
	text := newLanguage(o.seed)
	fmt.Fprintf(w, "%d parameters, %d characters a step\nforward:  %v\nbackward: %v\n", m.size(), o.batch*window, at.forwardPlan, at.backwardPlan)
	for step := range o.steps {
		input, target := text.batch(o.batch)
		loss, mirrored, err := m.forward(input, target)
		if err == nil {
			err = m.backward(input)
		}
		if err != nil {
			return nil, err
		}
		if o.check && step == 0 {
			if err := check(w, m, input, target); err != nil {
				return nil, err
			}
		}
		rate := o.rate * min(1, float64(step+1)/20) // a warm-up of 20 steps
		for _, p := range m.parameters {
			p.adam(rate, step+1)
		}
		losses = append(losses, loss)
		if step%max(o.print, 1) == 0 || step == o.steps-1 {
			fmt.Fprintf(w, "step %4d   loss %.5f   mirrored letters right %3.0f%%\n", step, loss, 100*mirrored)
		}
	}
	return losses, nil
}

// openDevice returns nil for the CPU tier, and for TierAuto without a GPU: the CPU tier is faster than a driver of the CPU.
func openDevice(tier attention.Tier) (*vk.Device, error) {
	if tier == attention.TierCPU {
		return nil, nil
	}
	dev, err := vk.Open(vk.Options{GPUOnly: tier == attention.TierAuto})
	if tier == attention.TierAuto && errors.Is(err, vk.ErrNoDevice) {
		return nil, nil
	}
	return dev, err
}
