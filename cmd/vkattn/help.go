package main

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/markdown"
)

// topic is a page of `vkattn help`, and a section of flags in the help of bench, verify, profile and tune.
type topic struct {
	name, about string
	flags       string // in the help of a command, a line each
	more        string // named there, and explained on the page
	text        string
}

// optionAxes are the flags of bench that give calls options.
func optionAxes() string {
	var flags []string
	for _, a := range bench.Axes {
		if a.Usage != "" && !a.Shapes() && a.Flag != "pass" {
			flags = append(flags, a.Flag)
		}
	}
	return strings.Join(flags, " ")
}

// topics lists them in the order of help texts.
var topics = []topic{
	{name: "problems", about: "which problems run",
		flags: "preset suite dtype headdim causal batch-size nheads seqlen",
		more:  "headdim-v nheads-kv seqlen-k list",
		text: `A list holds comma separated numbers and ranges: 1024-16384*2 doubles, 64-256+64 adds 64. The
problems are the cross product of all lists. Without a list, a sweep that suits the device runs.
A suite is a table of problems, and a list selects problems of the suite. --dtype selects
nothing: the suite runs once in each type. A preset is the attention of a model; lists replace
those of the preset. vkattn bench --list prints presets and suites.

--suite ceilings measures the device itself:

    copy      a kernel that copies memory; read: that reads it and adds up its words
    products  products of cooperative matrices whose operands stay in registers; fma: float32 FMAs
    launch    an empty dispatch by the clock of the host: record, submit, wait
    dispatch  an empty dispatch in a row of 200; barrier: each with a barrier behind it`},
	{name: "options", about: "options of each call",
		more: optionAxes(),
		text: `The data is random: the order of pages, the sparse tokens, and normal numbers that are quantized.
Peers only get problems without these options. --lse has forward calls return LSE too, which is
verified like O; peers get these problems.`},
	{name: "device", about: "what computes", flags: "device tier pass", more: "validation cuda-kernel",
		text: `--device auto takes the best GPU, and tier cpu if there is none. A Vulkan driver that runs
on the CPU is slower than tier cpu: auto takes it if tiers of Vulkan are asked for by name,
or all tiers. It passes over a device that cannot be opened, and says so. Where Vulkan has no
GPU, auto takes a CUDA device; --device cuda takes it in any case, with tier cuda alone.

--pass times the backward pass, or forward followed by backward. TFLOP/s count 2.5 and 3.5 times
the flops of the forward pass, even if the kernels compute some products twice. bench verifies
gradients as it verifies results: the whole gradients of a small problem, and sampled rows of dQ
and sampled keys of dK and dV of a large one. Gradients of tier cuda with options take O and LSE
from another tier, as not all of its forward kernels have them.`},
	{name: "kernels", about: "steps, ablations and tiles of kernels", more: "variant ablate tile bwd-tile",
		text: `--variant times the steps of the kernel's development. --ablate leaves out a part of the work and
shows what it costs; such a result is wrong by design and not verified.

--tile changes fields of the tile of the dense forward kernel, with the names of the tuning cache.
For example, --tile "" --tile kv_tile=32,group=4 times the default tile and the changed one in
turn. Calls with options take no such changes.

--bwd-tile changes fields of the tiles of the backward kernels. For example, --pass bwd
--bwd-tile "" --bwd-tile kv.row_tile=48,kv.kv_step=16 times the default tiles and the changed ones
in turn. The kernels are q (dQ), kv (dK and dV), add (dQ = dS K), lse and bias. The fields have the
names of the tuning cache: subgroups, m_frags, kv_tile, row_tile, kv_step and q_smem_chunks on the
coopmat tiers; invocations, threads_x, rows, kv_tile, chunk_d and chunk_v on tier scalar. A tile
that cannot run is a row with the reason.`},
	{name: "timing", about: "how often and how a row is timed", flags: "repetitions max-noise",
		more: "warmup timeout min-time delay warm-cache run-once seed",
		text: `bench verifies a row first: it compares the result with a float64 reference on the CPU, for a large
problem on sampled rows of every sequence. It then times the row with the device's clock after
0.5 s of warm-up, on inputs larger than the last-level cache. The tiers, peers and baselines of one
problem take turns in rounds, each in another order.

    vkattn bench --preset gpt3 --max-noise 0.5% --baseline old.json
    ncu vkattn bench --preset llama3-8b --run-once`},
	{name: "peers", about: "other implementations, and earlier runs", flags: "peer against baseline", more: "peer-timeout",
		text: `A peer is a command that times another implementation on the same device, in turns with the rows of
this program (go doc vkattn/cmd/vkattn/internal/peer has the protocol). A command that does not
answer as a peer is refused; a peer that fails later does not change the exit code.

--against adds rows of baselines, which compute the same result in another way.

Each row has a column "x NAME" for each of them, and for tier cuda.`},
	{name: "columns", about: "what the columns of tables mean",
		text: `Planned rows decide the columns and their widths before the first result, and a row is printed when
it is finished. What all rows have in common stands once above the table. A table that would be
over 100 characters wide has short titles, such as x1, and numbers such as [1] in place of long
texts; lines above the table explain both. --wide prints every column.

    B, Hq, Hkv  sequences, query heads, KV heads; H: both, if they are equal in all rows
    Sq, Sk      query rows and keys of a sequence; S: both
    D, Dv       head dim of Q and K, of V and O; D alone: both
    name        name of the problem in its preset or suite
    pass        fwd, bwd (gradients) or fwdbwd
    tier        tier or peer, with its kernel family, step, tiles or ablation
    ms          median time of a run in milliseconds; ms min, ms mean and ms max: of all runs
    +-          half width of the 95 % interval of the median, in percent of it. The interval holds
                the true median with a probability of 95 % or more, by the binomial distribution of
                ranks; - for fewer than six runs
    TFLOP/s     2 B Hq (D + Dv) cells / time, at the median. A cell is a row and a key that it
                attends to: pairs that masks, windows, lengths or lists of tokens exclude do not
                count, even if a kernel computes them. Gradients count 2.5 times that, fwdbwd 3.5.
                TFLOP/s mean: at the mean time; TFLOP/s peak: of the fastest run
    TB/s        bytes of K, V and their scales that must be read, once, over the time; of rows with
                one query row
    % peak      TFLOP/s in percent of products of matrices whose operands stay in registers
    % copy      TB/s in percent of a copy, whose bytes read and written count
    x NAME      time of peer, baseline or kernel NAME over the time of this row: above 1 this row is
                faster
    verdict     ok; unsteady: ok, but the time may be off, for the reason below the table; FAIL: the
                result is wrong; unsupported, OOM or error: with the reason below; interrupted;
                ablation: timed, but no result
    tile, splits       what the plan chose
    max error          largest error of O, or of a gradient, among the rows that were checked
    memory             tensors and scratch memory: in, out and workspace; K+V is what TB/s counts
    plain needs        memory of plain attention, which keeps the scores
    layers             calls of a model; ms of all layers: their time
    sparse ratio       share of the tokens of a sequence that are in its list
    max abs, NaN       largest number and count of NaN in O; from NAME: largest difference from NAME

Tables of --suite ceilings: us, TFLOP/s and GB/s (bytes read and written), as above.

Tables of verify:

    max diff    largest difference of O from the reference: the CUDA validation kernel, or float64
    NMSE        squared difference over squared reference
    LSE diff    largest difference of LSE
    max error   largest error of O in the rows that the float64 reference judges
    dQ error    largest error of dQ, and likewise of the other gradients
    error/limit largest error over its limit: above 1 the gradients are wrong
    rows, keys  how many were compared; float64 rows: with the float64 reference
    NaN         elements that are not finite in one of the two; max pair, worst partner: the largest
                difference from another implementation; runs: that gave the same bits

Tables of --ranks:

    ms                  from a common start to the end of the last rank
    TFLOP/s a GPU       TFLOP/s over the number of ranks
    exposed ms          ms less compute ms, the time without transfers
    share of N GPUs     one GPU ms, the time on one GPU, over N times ms: 100 % is ideal
    sent MB             of the rank that sends most; sent bytes: in one run of verify
    scratch MB          scratch memory of the rank that needs most; planned MB: of the plan
    limit, LSE limit    of max diff, the largest difference from one GPU, and of LSE diff

Tables of compare:

    old ms, new ms  medians; 0 % to 100 %: percentiles of the samples below the table
    new / old       new median over old: above 1 the row is slower
    95 % interval   holds the true ratio with a probability of 95 % or more
    p               probability that samples differ this much or more although nothing changed
    verdict         vkattn compare --help

Tables of tune:

    tile, choice        candidate tiles: the winner, and the one that the heuristic takes
    registers, spills   of an invocation, by the driver's compiler; spills in bytes; estimated: the
                        estimate of registers that prunes tiles before they are compiled
    shared              bytes of shared memory of a workgroup
    compile ms, runs    time to compile a tile, and how often it was timed
    status, reason      finalist: timed in the last round; timed: and slower than others; spills,
                        wrong, failed or pruned: left out for the reason; untried
    ms, best ms, s      of --check: time of the heuristic's tile and of the best; seconds to find it
    slower %            of --check: ms in percent above best ms
    gain, shape timed   of --list: time of the heuristic's tile over the stored one's, and of what
    when, state         of --list: when it was stored; stale: this build has other kernels`},
	{name: "output", about: "formats, files, pictures and signals", flags: "output wide of-peak save plot",
		more: "peak-tflops peak-tbs monitor",
		text: `--plot measures the ceilings that its pictures show, and --of-peak those of its columns, unless
--peak-tflops and --peak-tbs give them.

A problem that does not fit in the memory of the machine or the device is printed as
OOM, with the needed and the available memory. The command goes on with the next problem.

After SIGHUP, SIGINT or SIGTERM the command prints and saves the finished rows. Rows
that were running get the status "interrupted". The field "stopped" of the run in the
JSON has the reason. If no row is finished, the files of --save stay unchanged.

An output file is written under a hidden name in its folder and renamed when it is
complete. After an error the old file is unchanged and no temporary file is left. A
killed process may leave one; the next command that writes the same file removes it, and
--ranks removes that of a killed rank.
A replaced file keeps its permissions. Symbolic links are followed, not replaced.
Pipes and devices, such as /dev/stdout and /dev/null, are written in place; opening a
named pipe waits for its reader.`},
	{name: "ranks", about: "one process for each GPU", more: "ranks parallel schedule split inner transport",
		text: `--ranks N runs the command over N ranks, one process for each GPU (package
attention/parallel; docs/several-gpus.md). Where RANK and WORLD_SIZE are set, as by torchrun,
or the variables of mpirun or srun, each process is a rank of that world, and N is its size.
Otherwise the command starts N processes on this host. Rank 0 prints. --parallel lists the
modes: ring, ulysses, allgather, 2d or auto, and decode: few rows over a cache that is
sharded by tokens. NCCL moves the tensors if every rank has a GPU of its own and the library
libnccl.so.2, otherwise TCP (--transport). --schedule says when the blocks of a ring move in
the forward pass: during the computation (overlap) or before it (gather). The plan chooses by
default. --split lists the splits of rows and keys, each a row of its own: one chunk for each
rank (contiguous), two chunks, one counted from the end (zigzag, the default under a causal
mask), or tokens in turn (striped). --inner N shares heads among N consecutive ranks in mode
2d, in place of those of a host.

bench then times the forward pass, or with --pass bwd the backward pass: from a common start to the
end of the last rank, and again without transfers. The difference is the exposed communication
time. It also times rank 0's GPU alone with the whole problem. It does not verify. verify compares
the rows of all ranks with those of one GPU and, on sampled rows, with the float64 reference.`},
}

// topicCommands are the pages of topics, and their list. They run nothing.
func topicCommands(of *cobra.Command) (list []*cobra.Command) {
	of.InheritedFlags() // adds them to Flags
	all := "Pages of vkattn help:\n\n"
	for _, t := range topics {
		page := strings.TrimSpace(t.text)
		if flags := subset(of.Flags(), t.flags+" "+t.more); flags.HasFlags() {
			page += "\n\nFlags of vkattn " + of.Name() + ":\n" + strings.TrimRight(flags.FlagUsagesWrapped(markdown.Width), "\n")
		}
		list = append(list, &cobra.Command{Use: t.name, Short: t.about, Long: page})
		all += fmt.Sprintf("  %-10s %s\n", t.name, t.about)
	}
	return append(list, &cobra.Command{Use: "topics", Short: "the list of these pages", Long: strings.TrimSpace(all)})
}

// subset has the flags of a list.
func subset(f *pflag.FlagSet, names string) *pflag.FlagSet {
	out := pflag.NewFlagSet("", pflag.ContinueOnError)
	out.SortFlags = false
	for _, name := range strings.Fields(names) {
		if flag := f.Lookup(name); flag != nil {
			one := *flag
			out.AddFlag(&one)
		}
	}
	return out
}

// helpBySection prints the help of a command whose flags stand in sections of topics.
func helpBySection(c *cobra.Command, _ []string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage:\n  %s\n\nExamples:\n%s\n", c.Long, c.UseLine(), c.Example)
	shown := map[string]bool{"help": true, "version": true}
	more := ""
	for _, t := range topics {
		if lines := subset(c.Flags(), t.flags); lines.HasFlags() {
			fmt.Fprintf(&b, "\n%s (vkattn help %s):\n", strings.ToUpper(t.about[:1])+t.about[1:], t.name)
			lines.VisitAll(func(f *pflag.Flag) { f.Usage, _, _ = strings.Cut(f.Usage, ";") })
			for line := range strings.Lines(lines.FlagUsages()) {
				fmt.Fprintln(&b, text.Snip(strings.TrimSuffix(line, "\n"), markdown.Width, "..."))
			}
		}
		var names []string
		subset(c.Flags(), t.more).VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
		if len(names) > 0 {
			lines := markdown.Wrap(names, " ", markdown.Width-13)
			more += fmt.Sprintf("  %-10s %s\n", t.name, strings.Join(lines, "\n             "))
		}
		for _, name := range strings.Fields(t.flags + " " + t.more) {
			shown[name] = true
		}
	}
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	own.SortFlags = false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !shown[f.Name] {
			own.AddFlag(f)
		}
	})
	if own.HasFlags() {
		fmt.Fprintf(&b, "\nFlags of %s:\n%s", c.Name(), own.FlagUsagesWrapped(markdown.Width))
	}
	if more != "" {
		fmt.Fprintf(&b, "\nMore flags, by page of vkattn help (vkattn help topics lists the pages):\n%s", more)
	}
	_, _ = fmt.Fprint(c.OutOrStdout(), b.String()) // the writer keeps its error
}
