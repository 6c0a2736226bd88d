package parallel_test

import (
	"context"
	"fmt"
	"sync"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/internal/inputs"
)

// Two ranks of one process compute causal attention of one sequence, each on half of it.
func ExampleOp_Forward() {
	const ranks, heads, length, dim = 2, 4, 256, 64
	cfg := parallel.Config{Config: attention.Config{HeadDim: dim, Causal: attention.TopLeft}, Mode: parallel.ModeRing}
	problem := parallel.Problem{Shape: attention.Shape{B: 1, Hq: heads, Sq: length, Sk: length}}
	transports, err := parallel.InProcess(ranks)
	if err != nil {
		fmt.Println(err)
		return
	}
	rank := func(t parallel.Transport) error {
		group, err := parallel.NewGroup(t, parallel.GroupOptions{})
		if err != nil {
			return err
		}
		defer group.Close()
		op, err := parallel.New(group, nil, cfg) // nil: the CPU tier
		if err != nil {
			return err
		}
		defer op.Close()
		plan, err := op.Plan(problem)
		if err != nil {
			return err
		}
		rows := plan.Rows.Count(group.Rank())
		tensor := func(seed uint64) attention.Tensor {
			return attention.Tensor{Host: inputs.New(int64(heads*rows*dim), attention.F16, inputs.Normal, seed)}
		}
		args := parallel.Args{Problem: problem, Q: tensor(1), K: tensor(2), V: tensor(3), O: tensor(4)}
		if err := op.Forward(context.Background(), nil, args); err != nil {
			return err
		}
		if group.Rank() == 0 {
			fmt.Println("rank 0 has rows", plan.Rows[0], "and sends", plan.Forward.SentBytes, "bytes")
		}
		return group.Barrier(context.Background())
	}
	var wg sync.WaitGroup
	for _, t := range transports {
		wg.Go(func() {
			if err := rank(t); err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	// Output: rank 0 has rows [{0 64} {192 64}] and sends 131072 bytes
}
