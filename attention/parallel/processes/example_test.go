package processes_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"vkattn/attention"
	"vkattn/attention/parallel"
	"vkattn/attention/parallel/processes"
	"vkattn/internal/inputs"
)

// A program that torchrun, srun or mpirun starts once for each rank. Here it is the only rank of
// its world. On GPUs, dev is vk.Open with the name from Device(LOCAL_RANK), and the tensors lie in
// buffers of it.
func ExampleFromEnvironment() {
	os.Setenv("RANK", "0") // the launcher does this
	os.Setenv("WORLD_SIZE", "1")
	defer os.Unsetenv("RANK")
	defer os.Unsetenv("WORLD_SIZE")

	ctx := context.Background()
	group, err := processes.FromEnvironment(ctx, nil, processes.Options{Group: parallel.GroupOptions{Timeout: time.Minute}})
	if err != nil {
		fmt.Println(err) // it names the rank that did not join
		return
	}
	defer group.Close()
	op, err := parallel.New(group, nil, parallel.Config{Config: attention.Config{HeadDim: 64, Causal: attention.BottomRight}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer op.Close()
	problem := parallel.Problem{Shape: attention.Shape{B: 1, Hq: 2, Sq: 128, Sk: 128}}
	plan, err := op.Plan(problem)
	if err != nil {
		fmt.Println(err)
		return
	}
	rows := plan.Rows.Count(group.Rank())
	tensor := func(seed uint64) attention.Tensor {
		return attention.Tensor{Host: inputs.New(int64(2*rows*64), attention.F16, inputs.Normal, seed)}
	}
	err = op.Forward(ctx, nil, parallel.Args{Problem: problem, Q: tensor(1), K: tensor(2), V: tensor(3), O: tensor(4)})
	fmt.Println("rank", group.Rank(), "of", group.Ranks(), "has rows", plan.Rows[group.Rank()], err)
	_ = group.Barrier(ctx) // so that no rank leaves early
	// Output: rank 0 of 1 has rows [{0 128}] <nil>
}
