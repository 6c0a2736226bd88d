package control

import (
	"fmt"
	"net"
	"os"
	"strconv"

	"vkattn/attention/parallel"
	"vkattn/internal/errs"
)

// World says which rank this process is, and where rank 0 listens.
type World struct {
	Rank, Ranks int
	LocalRank   int // among the ranks of this host; the number of its device

	// Addresses of rank 0, "host:port". Ranks try them in turn. Rank 0 listens on the first
	// one, or on all interfaces if this host does not have that address, or resolves its own
	// name to a loopback address.
	Addresses []string
}

// PortEnv is an environment variable with the port of rank 0, in place of MASTER_PORT.
const PortEnv = "VKATTN_MASTER_PORT"

// families are the variables in which launchers pass ranks, the most specific first.
var families = []struct{ rank, ranks, local string }{
	{"RANK", "WORLD_SIZE", "LOCAL_RANK"},                                           // torchrun
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"}, // mpirun of Open MPI
	{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},                                    // mpirun of MPICH and Intel MPI
	{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},                              // srun
}

// FromEnvironment reads the world from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT,
// as torchrun sets them. Without RANK it takes the variables of Open MPI, PMI or Slurm for the
// ranks. ok is false if there are none. MASTER_ADDR and MASTER_PORT are needed with more than
// one rank.
//
// The agent of torchrun listens on MASTER_PORT itself if TORCHELASTIC_USE_AGENT_STORE is True;
// rank 0 then listens on the next port. VKATTN_MASTER_PORT names another port.
func FromEnvironment() (w World, ok bool, err error) {
	for _, f := range families {
		rank, hasRank := os.LookupEnv(f.rank)
		ranks, hasRanks := os.LookupEnv(f.ranks)
		if !hasRank || !hasRanks {
			continue
		}
		if w.Rank, err = number(f.rank, rank, 0, parallel.MaxRanks-1); err != nil {
			return World{}, true, err
		}
		if w.Ranks, err = number(f.ranks, ranks, 1, parallel.MaxRanks); err != nil {
			return World{}, true, err
		}
		if local, has := os.LookupEnv(f.local); has {
			if w.LocalRank, err = number(f.local, local, 0, parallel.MaxRanks-1); err != nil {
				return World{}, true, err
			}
		}
		if w.Ranks > 1 {
			address, err := masterAddress()
			if err != nil {
				return World{}, true, fmt.Errorf("%s and %s are set: %w", f.rank, f.ranks, err)
			}
			w.Addresses = []string{address}
		}
		return w, true, w.check()
	}
	return World{}, false, nil
}

// masterAddress is the address at which rank 0 listens.
func masterAddress() (string, error) {
	host := os.Getenv("MASTER_ADDR")
	if host == "" {
		return "", errs.Invalid("MASTER_ADDR is missing, the host of rank 0")
	}
	name := PortEnv
	text, own := os.LookupEnv(name)
	if !own {
		name = "MASTER_PORT"
		text = os.Getenv(name)
	}
	if text == "" {
		return "", errs.Invalid("%s is missing, the port of rank 0", name)
	}
	const last = 1<<16 - 1
	port, err := number(name, text, 1, last)
	if err != nil {
		return "", err
	}
	if !own && os.Getenv("TORCHELASTIC_USE_AGENT_STORE") == "True" {
		port = port%last + 1
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func number(name, text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, errs.Invalid("%s is %q, want a number from %d to %d", name, text, least, most)
	}
	return n, nil
}

func (w *World) check() error {
	switch {
	case w.Ranks < 1 || w.Ranks > parallel.MaxRanks:
		return errs.Invalid("a world of %d ranks, want 1 to %d", w.Ranks, parallel.MaxRanks)
	case w.Rank < 0 || w.Rank >= w.Ranks:
		return errs.Invalid("rank %d of %d", w.Rank, w.Ranks)
	}
	return nil
}
